"""Weights of timm's models in ours, and timm's model for one of ours.

Importing this module also makes timm importable beside a CPU build of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from stepsnet.blocks.attention import Attention
from stepsnet.errors import UsageError
from stepsnet.integrations.names import COMPUTED, OUR_NAMES
from stepsnet.models import Model, VisionModel, resnet, swin
from stepsnet.models.files import put_weights
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision

import_torchvision()


def load_timm_weights(model: Model, state_dict: Mapping[str, Tensor]) -> None:
    """Load the state dict of timm's model into a ResNet, DeiT or Swin of one step; errors name the tensor."""
    name = model.default_cfg.get("architecture", type(model).__name__)
    if model.family not in OUR_NAMES or any(len(plan) > 1 for plan in model.plans):
        plain = ", ".join(OUR_NAMES)
        raise UsageError(f"timm has weights for the plain {plain}, not for {name} with plan '{model.plan}'")
    own = model.state_dict()
    weights: dict[str, Tensor] = {}
    for key, tensor in state_dict.items():
        if key.endswith(COMPUTED):
            continue
        ours = OUR_NAMES[model.family](key)
        if ours not in own:
            raise UsageError(f"{key} of timm's weights has no counterpart in {name}, which has {next(iter(own))}, …")
        if tensor.shape != own[ours].shape:
            raise UsageError(
                f"{key} of timm's weights is {tuple(tensor.shape)}, but {ours} of {name} is {tuple(own[ours].shape)}"
            )
        weights[ours] = tensor
    if missing := sorted(own.keys() - weights.keys()):
        raise UsageError(f"timm's weights lack {missing[0]} of {name} ({len(missing)} missing in total)")
    put_weights(model, weights)


def timm_twin(model: Model) -> nn.Module:
    """timm's ResNet, DeiT or Swin with the sizes and weights of `model`. Models that timm does not have are refused."""
    name = model.default_cfg.get("architecture", type(model).__name__)
    if (
        not isinstance(model, VisionModel)
        or model.family not in OUR_NAMES
        or any(len(plan) > 1 for plan in model.plans)
    ):
        raise UsageError(
            f"timm has no {name}: it has the plain {', '.join(OUR_NAMES)}; --against baseline compares a Steps model"
        )
    if (design := model.default_cfg.get("options", {}).get("residual", "plain")) != "plain":
        raise UsageError(f"timm has no {name} with the residual design {design!r}, only the plain one")
    twin = _MAKERS[model.family](model)
    twin.load_state_dict(_their_weights(model, twin))
    return twin


def _make_deit(model: Any) -> nn.Module:
    heads = next(module.heads for module in model.modules() if isinstance(module, Attention))
    made: nn.Module = require("timm.models.vision_transformer", extra="timm").VisionTransformer(
        patch_size=model.patch_embed.patch, embed_dim=model.num_features, depth=model.plans[0].blocks, num_heads=heads,
        fc_norm=False,  # timm's default for average pooling moves the norm behind the pooling; ours is before it
        **_shared(model),
    )  # fmt: skip
    return made


def _make_swin(model: swin.Swin) -> nn.Module:
    made: nn.Module = require("timm.models.swin_transformer", extra="timm").SwinTransformer(
        patch_size=model.patch_embed.patch,
        window_size=model.window,
        embed_dim=model.plans[0].width,
        drop_path_rate=0.0,
        depths=tuple(plan.blocks for plan in model.plans),
        num_heads=tuple(model.heads(plan.width) for plan in model.plans),
        **_shared(model),
    )
    return made


def _make_resnet(model: resnet.ResNet) -> nn.Module:
    library = require("timm.models.resnet", extra="timm")
    widths = tuple(plan.width for plan in model.plans)
    if widths[0] != 64:
        raise UsageError(f"timm has no ResNet that starts with {widths[0]} channels, only with 64")
    options = _shared(model)
    del options["img_size"]
    layers = [plan.blocks + 1 for plan in model.plans]  # the opening block of a stage is not in our plan
    block = library.BasicBlock if model.branch.expansion == 1 else library.Bottleneck
    made: nn.Module = library.ResNet(block, layers, channels=widths, **options)
    return made


def _shared(model: VisionModel) -> dict[str, Any]:
    in_chans, *sides = model.input_size
    return {
        "img_size": tuple(sides),
        "in_chans": in_chans,
        "num_classes": model.num_classes,
        "global_pool": model.global_pool,
    }


def _their_weights(model: Model, twin: nn.Module) -> dict[str, Tensor]:
    """Our weights under timm's names, by the renaming that `load_timm_weights` uses; computed tables stay timm's."""
    own, rename = model.state_dict(), OUR_NAMES[model.family]
    return {key: tensor if key.endswith(COMPUTED) else own[rename(key)] for key, tensor in twin.state_dict().items()}


_MAKERS = {"deit": _make_deit, "swin": _make_swin, "resnet": _make_resnet}
