"""Timm's network of the same sizes and with the same weights as one of ours, for comparing the two."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stepsnet.blocks.attention import Attention
from stepsnet.errors import UsageError
from stepsnet.integrations.timm import COMPUTED, OUR_NAMES
from stepsnet.models import Model, VisionModel, resnet, swin
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision


def timm_twin(model: Model) -> nn.Module:
    """Timm's plain ResNet, DeiT or Swin as `model` is, holding its weights. A model that timm does not have is refused."""
    name = model.default_cfg.get("architecture", type(model).__name__)
    if not isinstance(model, VisionModel) or model.family not in OUR_NAMES or any(len(plan) > 1 for plan in model.plans):
        raise UsageError(f"timm has no {name}: it has the plain {', '.join(OUR_NAMES)}; --against baseline compares a Steps model")
    if (design := model.default_cfg.get("options", {}).get("residual", "plain")) != "plain":
        raise UsageError(f"timm has no {name} with the residual design {design!r}, only the plain one")
    import_torchvision()
    twin = _MAKERS[model.family](model)
    twin.load_state_dict(_their_weights(model, twin))
    return twin


def _deit(model: Any) -> nn.Module:
    heads = next(module.heads for module in model.modules() if isinstance(module, Attention))
    made: nn.Module = require("timm.models.vision_transformer", extra="timm").VisionTransformer(
        patch_size=model.patch_embed.patch, embed_dim=model.num_features, depth=model.plans[0].blocks, num_heads=heads, **_shared(model)
    )
    return made


def _swin(model: swin.Swin) -> nn.Module:
    made: nn.Module = require("timm.models.swin_transformer", extra="timm").SwinTransformer(
        patch_size=model.patch_embed.patch, window_size=model.window, embed_dim=model.plans[0].width, drop_path_rate=0.0,
        depths=tuple(plan.blocks for plan in model.plans), num_heads=tuple(model.heads(plan.width) for plan in model.plans),
        **_shared(model),
    )
    return made


def _resnet(model: resnet.ResNet) -> nn.Module:
    library = require("timm.models.resnet", extra="timm")
    widths = tuple(plan.width for plan in model.plans)
    if widths[0] != 64:
        raise UsageError(f"timm has no ResNet that starts with {widths[0]} channels, only with 64")
    options = _shared(model)
    del options["img_size"]
    layers = [plan.blocks + 1 for plan in model.plans]  # the block that opens a stage is in no plan of ours
    block = library.BasicBlock if model.branch.expansion == 1 else library.Bottleneck
    made: nn.Module = library.ResNet(block, layers, channels=widths, **options)
    return made


def _shared(model: VisionModel) -> dict[str, Any]:
    in_chans, *sides = model.input_size
    return {"img_size": tuple(sides), "in_chans": in_chans, "num_classes": model.num_classes, "global_pool": model.global_pool}


def _their_weights(model: Model, twin: nn.Module) -> dict[str, Tensor]:
    """Our weights under timm's names, found by the same renaming that loads timm's weights into ours; computed tables stay timm's."""
    own, rename = model.state_dict(), OUR_NAMES[model.family]
    return {key: tensor if key.endswith(COMPUTED) else own[rename(key)] for key, tensor in twin.state_dict().items()}


_MAKERS = {"deit": _deit, "swin": _swin, "resnet": _resnet}
