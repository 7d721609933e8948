"""Convolution, batch norm and shortcut as one call of oneDNN, for inference in eager mode on a CPU.

A convolution's result is mostly larger than its weights, and batch norm and sum each walk through all of it once more. In inference a
batch norm is a fixed factor and offset per channel, so it goes into the weights on the way (γ/σ w and β − γμ/σ: a pass over the weights
instead of the maps, where those are the larger), and the sum into the convolution, which adds while its result is in the cache. Nothing
is kept between calls: weights may change at any time. `applies` says where this may stand in for the blocks' readable code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from stepsnet.accel import kernels

ConvAndNorm: TypeAlias = tuple[nn.Module, nn.Module]
"""A convolution without bias and its batch norm; or, folded together, a convolution with bias and an Identity."""


def applies(x: Tensor, *layers: ConvAndNorm, acts: Iterable[nn.Module] = (), around: Iterable[nn.Module] = ()) -> bool:
    """Whether these layers and ReLUs may run here: inference on ordinary fp32 maps, and nobody watches them or the modules around them."""
    return (
        x.dtype is torch.float32
        and kernels.applies(x)
        and x.numel() > 0
        and torch._C._get_mkldnn_enabled()
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
        and torch._C._len_torch_dispatch_stack() == 0  # who counts operations counts the readable ones
        and all(type(act) is nn.ReLU and not kernels.watched(act) for act in acts)
        and not any(kernels.watched(module) for module in around)
        and all(_known(conv, norm) and _fixed(x, conv, norm) for conv, norm in layers)
    )


def _known(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether the two compute what `convolve` does; layers that people put in their place may not."""
    if kernels.watched(conv) or kernels.watched(norm) or not isinstance(conv, nn.Conv2d):
        return False
    if type(conv).forward is not nn.Conv2d.forward or type(conv)._conv_forward is not nn.Conv2d._conv_forward:
        return False
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return False
    if type(norm) is nn.Identity:
        return True
    return conv.bias is None and isinstance(norm, nn.BatchNorm2d) and type(norm).forward is nn.BatchNorm2d.forward


def _fixed(x: Tensor, conv: nn.Module, norm: nn.Module) -> bool:
    """Whether nothing learns here: neither weights nor running statistics."""
    if isinstance(norm, nn.BatchNorm2d) and (norm.training or norm.running_var is None or not norm.affine):
        return False
    tensors = [*conv.parameters(), *norm.parameters(), *(buffer for buffer in norm.buffers() if buffer.is_floating_point())]
    ordinary = all(type(tensor) in kernels.ORDINARY and tensor.dtype is x.dtype and tensor.device == x.device for tensor in tensors)
    return ordinary and not kernels.learns(x, *tensors)


def convolve(x: Tensor, layer: ConvAndNorm, relu: bool, shortcut: Tensor | None = None) -> Tensor:
    """norm(conv(x)), with the shortcut added and ReLU after it if asked for; maps (B, C, H, W) channels-last in memory."""
    conv, norm = layer
    assert isinstance(conv, nn.Conv2d)
    weight, bias = conv.weight, conv.bias
    if not isinstance(norm, nn.BatchNorm2d):
        y = _call(x, conv, weight, bias, shortcut)
    elif weight.numel() * conv.stride[0] * conv.stride[1] <= len(x) * conv.out_channels * x.shape[2] * x.shape[3]:
        y = _call(x, conv, *_folded(weight, norm), shortcut)
    else:  # the weights are larger than the maps
        y = norm(_call(x, conv, weight, None, None))
        y = y if shortcut is None else y.add_(shortcut)
    return y.relu_() if relu else y  # oneDNN could do that too, but makes zeros of what is not a number


def _folded(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    room = torch.empty_like(weight, memory_format=torch.channels_last)  # as oneDNN wants it
    return torch.mul(weight, scale.view(-1, 1, 1, 1), out=room), norm.bias - norm.running_mean * scale


def _call(x: Tensor, conv: nn.Conv2d, weight: Tensor, bias: Tensor | None, shortcut: Tensor | None) -> Tensor:
    geometry = (conv.padding, conv.stride, conv.dilation, conv.groups)
    y: Tensor
    if shortcut is None:
        y = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *geometry, "none", [], None)
    else:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
        y = torch.ops.mkldnn._convolution_pointwise.binary(x, shortcut, weight, bias, *geometry, "add", 1.0, None, [], None)
    return y


def add_branch(x: Tensor, layers: Sequence[ConvAndNorm], shortcut: Tensor) -> Tensor:
    """ReLU(shortcut + R(x)), where R is the layers with ReLU between them."""
    *first, last = layers
    for layer in first:
        x = convolve(x, layer, relu=True)
    return convolve(x, last, relu=True, shortcut=shortcut)
