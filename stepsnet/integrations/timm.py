"""Weights of timm's models in ours. Importing this module also makes timm importable beside a CPU build of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.models import Model
from stepsnet.models.files import put_weights
from stepsnet.optional.torchvision import import_torchvision

import_torchvision()

# Tables that older checkpoints of timm's Swin carry; ours are computed where they are used.
COMPUTED = ("relative_position_index", "attn_mask")


def load_weights(model: Model, state_dict: Mapping[str, Tensor]) -> None:
    """Fill a ResNet, DeiT or Swin of one step from the state dict of timm's model of the same sizes; what does not fit is named."""
    name = model.default_cfg.get("architecture", type(model).__name__)
    if model.family not in OUR_NAMES or any(len(plan) > 1 for plan in model.plans):
        plain = ", ".join(OUR_NAMES)
        raise UsageError(f"timm has weights for the plain {plain} (one step a stage), not for {name} with plan '{model.plan}'")
    own = model.state_dict()
    weights: dict[str, Tensor] = {}
    for key, tensor in state_dict.items():
        if key.endswith(COMPUTED):
            continue
        ours = OUR_NAMES[model.family](key)
        if ours not in own:
            raise UsageError(f"{key} of timm's weights has no place in {name}, which has {len(own)} tensors such as {next(iter(own))}")
        if tensor.shape != own[ours].shape:
            raise UsageError(f"{key} of timm's weights is {tuple(tensor.shape)}, but {ours} of {name} is {tuple(own[ours].shape)}")
        weights[ours] = tensor
    if missing := sorted(own.keys() - weights.keys()):
        raise UsageError(f"timm's weights have nothing for {missing[0]} of {name} ({len(missing)} missing in all)")
    put_weights(model, weights)


def _resnet(key: str) -> str:
    key = re.sub(r"^conv1\.", "stem.conv.", key)
    key = re.sub(r"^bn1\.", "stem.bn.", key)
    key = re.sub(r"^fc\.", "head.", key)
    key = key.replace(".downsample.0.", ".shortcut.conv.").replace(".downsample.1.", ".shortcut.bn.")

    def place(found: re.Match[str]) -> str:
        """The first block of timm's layers opens our stages; the others are the blocks of their plans."""
        stage, block, part = int(found[1]) - 1, int(found[2]), found[3]
        if block:
            return f"stages.{stage}.net.steps.0.blocks.{block - 1}.conv.branch.{part}"
        return f"stages.{stage}.opening.{part if part == 'shortcut' else 'branch.' + part}"

    return re.sub(r"^layer(\d+)\.(\d+)\.(\w+)", place, key)


def _deit(key: str) -> str:
    return _transformer(re.sub(r"^blocks\.", "net.steps.0.blocks.", key))


def _swin(key: str) -> str:
    key = re.sub(r"^layers\.(\d+)\.blocks\.", r"stages.\1.net.steps.0.blocks.", key)
    key = re.sub(r"^layers\.(\d+)\.downsample\.", r"stages.\1.merging.", key)
    key = re.sub(r"^head\.fc\.", "head.", key)
    return _transformer(key.replace(".relative_position_bias_table", ".bias_table"))


def _transformer(key: str) -> str:
    """Inside a block: timm has norm1, attn, norm2, mlp side by side, we have two residual parts of norm and branch."""
    key = re.sub(r"(blocks\.\d+)\.(attn|mlp)\.", r"\1.\2.branch.", key)
    return re.sub(r"(blocks\.\d+)\.norm([12])\.", lambda found: f"{found[1]}.{'attn' if found[2] == '1' else 'mlp'}.norm.", key)


OUR_NAMES: dict[str, Callable[[str], str]] = {"resnet": _resnet, "deit": _deit, "swin": _swin}
