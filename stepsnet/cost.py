"""The cost of a network: parameters, multiply-accumulates (MACs) and memory of one forward pass, on the meta device.

"FLOPs" in the paper are MACs of matrix products and convolutions. Layers are counted as in Table 1: every convolution
or linear layer on the main path is one, and attention is one. A Transformer block has 5 (QKV, attention, projection,
two in the MLP), a basic block 2, a bottleneck 3.

Activation memory is the size of the outputs of these layers: of every convolution, linear layer (the head too) and
attention. Scores of attention are not counted, since fused attention does not store them; neither are norms and
element-wise functions. It is a property of the network, independent of device and kernel. What a training step
really allocates is larger by a factor that differs little between networks of one family.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """The cost of a network for one input. Blocks and layers are None for a model of another library."""

    blocks: int | None
    layers: int | None
    params: int
    macs: int


@dataclass(frozen=True)
class Memory:
    """Bytes for one input, at the precision of the model's parameters. Only language models have a KV cache."""

    activations: int
    kv_cache: int


def count_params(model: nn.Module) -> int:
    """Number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, *inputs: Any, kinds: Mapping[nn.Module, Hashable] | None = None) -> int:
    """Multiply-accumulates of one forward pass, attention included. Of `inputs` only the shapes matter.

    `kinds` saves time in deep networks: of all its modules of one kind with inputs of one shape, only the first is run,
    and the others count as much. They must return the shape they take.
    """
    # On the meta device attention consists of matrix products. On the CPU it is one fused kernel, which the counter
    # does not see.
    counter = FlopCounterMode(display=False)
    with counter, _one_of_each_kind(kinds or {}, counter.get_total_flops) as skipped:
        run_on_meta(model, *inputs)
    return (counter.get_total_flops() + sum(skipped)) // 2  # the counter counts two for every multiply-accumulate


def count_activations(model: nn.Module, *inputs: Any, kinds: Mapping[nn.Module, Hashable] | None = None) -> int:
    """Activation memory of one forward pass in bytes, as defined above. Arguments as of `count_macs`."""
    with LayerOutputs() as outputs, _one_of_each_kind(kinds or {}, lambda: outputs.bytes) as skipped:
        run_on_meta(model, *inputs)
    return outputs.bytes + sum(skipped)


class LayerOutputs(TorchFunctionMode):
    """Adds up the outputs of layers."""

    layers = (F.linear, torch.addmm, F.conv2d, F.scaled_dot_product_attention)

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self.layers:
            self.bytes += result.numel() * result.element_size()
        return result


def run_on_meta(model: nn.Module, *inputs: Any) -> Any:
    """One forward pass in evaluation mode on the meta device, where nothing is computed; the model stays as it is."""
    state = {name: tensor.to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    inputs = tuple(value.to("meta") if isinstance(value, Tensor) else value for value in inputs)
    with _evaluating(model), torch.no_grad():
        return functional_call(model, state, inputs)


@contextmanager
def _one_of_each_kind(kinds: Mapping[nn.Module, Hashable], counted: Callable[[], int]) -> Iterator[list[int]]:
    """Modules whose cost is known return an empty tensor instead of running; yields what `counted` leaves out so."""
    skipped: list[int] = []
    known: dict[Hashable, int] = {}

    def forward_of(module: nn.Module, kind: Hashable) -> Callable[..., Tensor]:
        run = module.forward

        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            key = (kind, x.shape)
            if key in known:
                skipped.append(known[key])
                return torch.empty_like(x)
            before = counted()
            y: Tensor = run(x, *args, **kwargs)
            known[key] = counted() - before
            return y

        return forward

    for module, kind in kinds.items():
        vars(module)["forward"] = forward_of(module, kind)
    try:
        yield skipped
    finally:
        for module in kinds:
            del vars(module)["forward"]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without compiled code; afterwards every module is in the mode it was in."""
    modules = [(module, module.training) for module in model.modules()]
    compiled = any(module._compiled_call_impl is not None for module, _ in modules)
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module, training in modules:
            module.training = training
