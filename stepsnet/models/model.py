"""Model, the base class of all families, and the layer of each parameter. vision.py adds what vision models have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from stepsnet.blocks.attention import Attention, CausalAttention
from stepsnet.blocks.layers import INITS
from stepsnet.blocks.window import WindowAttention
from stepsnet.cost import Cost, Memory, count_activations, count_macs, count_params
from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, Stack, StepPlan, StepsNet
from stepsnet.models.design import Net, format_plans


class Model(nn.Module, ABC):
    """Base class of all families.

    `plans` has one plan per stage. `input_size` is the shape of one input. `default_cfg` is what the model was made
    from.
    """

    family: str
    plans: tuple[StepPlan, ...]
    input_size: tuple[int, ...]
    num_features: int
    started: object | None = None
    """What `load_pretrained` did before training: `str()` is a sentence."""
    on_meta = True
    """Whether a model can be made on the meta device and then filled from a file."""

    def __init__(self) -> None:
        super().__init__()
        self.default_cfg: dict[str, Any] = {}
        self.init = "own"

    @property
    def plan(self) -> str:
        return format_plans(self.plans)

    @abstractmethod
    def forward_features(self, x: Tensor) -> Tensor:
        """The last hidden state after its norm, `num_features` wide."""

    @abstractmethod
    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        """One input on the meta device, for counting."""

    def cost(self, input_size: tuple[int, ...] | None = None) -> Cost:
        """Blocks, layers, parameters and MACs of one input, by default of the model's own size."""
        macs = count_macs(self, self.dummy_input(input_size), kinds=self.kinds())
        return Cost(self.count_blocks(), self.count_layers(), count_params(self), macs)

    def memory(self, input_size: tuple[int, ...] | None = None) -> Memory:
        """Bytes of activations and of the KV cache for one input, by default of the model's own size."""
        x = self.dummy_input(input_size)
        return Memory(count_activations(self, x, kinds=self.kinds()), self.count_cache(x))

    def kinds(self) -> dict[nn.Module, Hashable]:
        """The kind of each block, for counting one of each."""
        return {block: kind_of(block) for block in self.blocks_in_order()}

    def count_cache(self, x: Tensor) -> int:  # noqa: ARG002
        """Bytes of the KV cache after the tokens `x`; 0 for models without one."""
        return 0

    def count_blocks(self) -> int:
        """All residual blocks, including those outside of the plans."""
        return len(self.blocks_in_order())

    def count_layers(self) -> int:
        """Layers as in Table 1: convolutions and linear layers that are not on a shortcut, and attentions."""
        counted = (nn.Conv2d, nn.Linear, Attention, CausalAttention, WindowAttention)
        return sum(isinstance(module, counted) and ".shortcut" not in name for name, module in self.named_modules())

    def nets(self) -> list[Net]:
        """The macro networks, stage by stage."""
        return [module for module in self.modules() if isinstance(module, (StepsNet, ReverseStepsNet))]

    def blocks_in_order(self) -> list[nn.Module]:
        """The residual blocks of all stacks, in the order of execution."""
        return [block for stack in self.modules() if isinstance(stack, Stack) for block in stack.blocks]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay, besides biases and norms."""
        return set()

    def stem_names(self) -> tuple[str, ...]:
        """Prefixes of the parameters before the first block: layer 0 of layer-wise learning-rate decay."""
        return ()

    def get_classifier(self) -> nn.Module:
        """The head, in models that have one."""
        raise UsageError(f"{type(self).__name__} has no classifier")

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:  # noqa: ARG002
        """A new head, in models that have one."""
        raise UsageError(f"{type(self).__name__} has no classifier")

    def cfg(self) -> dict[str, Any]:
        """What `default_cfg` says about inputs and outputs, besides the input size."""
        return {}

    def changed_options(self) -> dict[str, Any]:
        """Options that may differ from those the model was made with, such as the number of classes. For files."""
        return {}

    def init_own_parameters(self) -> None:
        """Initialise the parameters that no submodule holds (tokens, positions)."""

    def reset_layer(self, layer: nn.Module) -> None:
        """Initialise one submodule: linear layers by `init`, others by their own `reset_parameters()`."""
        if type(layer) is nn.Linear:
            INITS[self.init](layer)
        else:
            layer.reset_parameters()  # type: ignore[operator]  # checked by the caller

    def reset_parameters(self) -> None:
        """Initialise all parameters and running statistics again, also of a model that was made on the meta device."""
        for name, module in self.named_modules():
            if module is self:
                self.init_own_parameters()
            elif callable(getattr(module, "reset_parameters", None)):
                self.reset_layer(module)
            elif any(True for _ in module.parameters(recurse=False)):
                owner = self.get_submodule(name.rpartition(".")[0])
                if isinstance(module, nn.ParameterList) and callable(getattr(owner, "reset_parameters", None)):
                    continue
                what = f"{name} ({type(module).__name__})"
                raise UsageError(f"{what} holds parameters but has no reset_parameters() to initialise them")


def kind_of(block: nn.Module) -> Hashable:
    """Equal for blocks with modules of the same types and weights of the same shapes. They cost the same."""
    return tuple(map(type, block.modules())), tuple(parameter.shape for parameter in block.parameters())


def layer_prefixes(model: Model) -> dict[str, int]:
    """Prefixes of parameter names and the layer they belong to: stem 0, then one per block. Longest prefixes first.

    Modules between blocks (joins, patch merging, downsampling blocks) belong to the next block. The last norm and the
    head, which are one more layer, have no prefix.
    """
    layer = 0
    owner: dict[str, int] = dict.fromkeys(model.stem_names(), 0)
    for name, module in model.named_modules():
        stage = name.rpartition(".")[0]
        if isinstance(module, StepsNet | ReverseStepsNet) and stage[-1:].isdigit():  # stages.1.net and what precedes it
            owner[f"{stage}."] = layer + 1
        if isinstance(module, Stack):  # ….steps.2, with the join ….joins.1 before it
            net, number = name.rsplit(".steps.", 1)
            owner[f"{net}.joins.{int(number) - 1}."] = layer + 1
            owner[f"{name}."] = layer + 1
            owner |= {f"{name}.blocks.{index}.": layer + 1 + index for index in range(len(module.blocks))}
            layer += len(module.blocks)
    return dict(sorted(owner.items(), key=lambda item: len(item[0]), reverse=True))


def layer_ids(model: Model) -> dict[str, int]:
    """The layer of each parameter, for layer-wise learning-rate decay: stem 0, then one per block, then the head."""
    owner = layer_prefixes(model)
    head = len(model.blocks_in_order()) + 1
    return {
        name: next((layer for prefix, layer in owner.items() if name.startswith(prefix)), head)
        for name, _ in model.named_parameters()
    }


def freeze(model: Model, part: str | int) -> list[str]:
    """Freeze the weights of a part, counted from the input, and return their names.

    `part` is "stem", "stage1", "stage2" … (the stem and the stages up to it), "body" (all but the head) or a number of
    blocks. Frozen modules belong in evaluation mode in training: see `frozen_modules`.
    """
    part = str(part)
    counts = [sum(len(stack.blocks) for stack in net.modules() if isinstance(stack, Stack)) for net in model.nets()]
    ends = {"stem": 0, **{f"stage{number}": sum(counts[:number]) for number in range(1, len(counts) + 1)}}
    if part.isdecimal() and int(part) <= sum(counts):
        ends[part] = int(part)
    if part not in (*ends, "body"):
        known = f"stem, {', '.join(name for name in ends if name != 'stem')}, body, or up to {sum(counts)} blocks"
        raise UsageError(f"freeze is {part!r}, but must be {known}.")
    layers = layer_ids(model)
    names = [name for name, layer in layers.items()
             if (not name.startswith("head.") if part == "body" else layer <= ends[part])]  # fmt: skip
    if len(names) == len(layers):
        raise UsageError(f"freeze={part} would freeze every weight of {type(model).__name__}.")
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return names


def frozen_modules(model: nn.Module) -> list[nn.Module]:
    """Modules without a weight that learns. Their batch norms must not learn either, and need no stochastic depth."""
    owners = [module for module in model.modules() if any(True for _ in module.parameters())]
    return [module for module in owners if not any(parameter.requires_grad for parameter in module.parameters())]
