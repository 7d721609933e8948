"""Batch norms folded into the convolutions before them: in inference the two are one affine map, and one pass over the map is saved."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from stepsnet.errors import UsageError
from stepsnet.models.model import Model

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def fold(model: AnyModule) -> AnyModule:
    """A copy of a model for inference, every `bn…` folded into the `conv…` of the same ending beside it (`bn2` into `conv2`).

    γ (w∗x − μ)/σ + β = (γ/σ w)∗x + (β − γμ/σ): the same outputs up to rounding, from fewer operations. Models without batch norms
    come back as a plain copy. A folded model can be exported and compiled; it can no longer be trained with batch norms, and its
    weights fit no unfolded model. Pairs are found by name, so a network of your own must run `conv2` right before `bn2`.
    """
    if model.training:
        raise UsageError("fold() is for inference, where batch norms are fixed, but the model is in training mode: call model.eval() first")
    folded = deepcopy(model)
    for module in list(folded.modules()):
        for name, norm in list(module.named_children()):
            conv = getattr(module, name.replace("bn", "conv"), None)
            if isinstance(norm, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d):
                setattr(module, name.replace("bn", "conv"), _fold_pair(conv, norm))
                setattr(module, name, nn.Identity())
    if isinstance(folded, Model):
        folded.default_cfg = {**folded.default_cfg, "folded": True}  # save_model refuses it: nothing could rebuild it
    return folded


def _fold_pair(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    with torch.no_grad():
        return fuse_conv_bn_eval(conv, norm)
