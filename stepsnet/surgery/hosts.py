"""What stepify and deepen need to know of a model: where its residual blocks are, and how to make one at another width.

`Host` is the protocol. One adapter per library derives from it (timm.py, transformers.py). For a model of your own give
`make_block=` to stepify or deepen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from stepsnet.analysis.find import carried, find_blocks
from stepsnet.cost import count_params
from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models.design import format_plans

MakeBlock = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class Stage:
    """Residual blocks of one width: `depth` members of the module list at `path`, the first of them at `start`."""

    path: str
    start: int
    depth: int
    width: int
    channel_dim: int


@dataclass(frozen=True)
class Measured:
    """Cost of one forward pass: parameters and MACs of the whole model and, stage by stage, of each block."""

    params: int
    macs: int
    blocks: tuple[tuple[tuple[int, int], ...], ...]
    """(parameters, MACs) of each block of each stage."""


class Host:
    """A model whose residual blocks can be exchanged. The methods below are all that the surgery calls.

    `example` is a tuple of inputs for one forward pass; only shapes matter. `make_block(width, index)` returns the
    block for position `index` of its stage, taking `width` channels. `unit` is what derived widths are multiples of.
    """

    library = ""

    def __init__(
        self,
        model: nn.Module,
        example: tuple[Any, ...],
        make_block: MakeBlock | None = None,
        blocks: Sequence[str] | None = None,
        channel_dim: int | None = None,
        unit: int = 8,
    ) -> None:
        self.model = model
        self.example = example
        self._make_block = make_block
        self._unit = unit
        self.paths = None if blocks is None else list(blocks)
        self.run = run_on_meta
        self.stages = self.find_stages(blocks, channel_dim)

    # What an adapter overrides.

    @staticmethod
    def format_plans(plans: Sequence[StepPlan]) -> str:
        """The plans of `stages` as a model's plan is written."""
        return format_plans(plans)

    def make_block(self, width: int, index: int, stage: int = 0) -> nn.Module:  # noqa: ARG002
        if self._make_block is None:
            what = "give make_block=, a function (width, index) → block, or take a model of timm or transformers"
            raise UsageError(f"blocks of {type(self.model).__name__} cannot be made at another width; {what}")
        return self._make_block(width, index)

    def prepare(self, depths: Sequence[int], origins: Sequence[Sequence[int]] | None = None) -> None:
        """Called before blocks are made: how many blocks each stage will have.

        deepen also says after which old block each new one is modelled: `origins`, one index a block. It matters where
        blocks alternate between kinds.
        """

    def settle(self, depths: Sequence[int]) -> None:
        """Called after the blocks were exchanged: bookkeeping of the model that depends on the number of blocks."""

    def bookkeeping(self) -> dict[str, Any]:
        """What `settle` changes, as plain data, for `undeepen`."""
        return {}

    @staticmethod
    def restore(model: nn.Module, bookkeeping: Mapping[str, Any]) -> None:
        """Put back what `bookkeeping` returned."""

    def record(self) -> dict[str, Any]:
        """What makes the plain model again, as plain data: library, name and options.

        Called before anything is exchanged.
        """
        return {"library": self.library, "blocks": self.paths}

    def unit(self, stage: int) -> int:  # noqa: ARG002
        return self._unit

    def new_blocks(self, stage: int) -> str:
        """How to tell `deepen` to add two blocks to this stage, such as ";256x2;"."""
        return ";" * stage + f"{self.stages[stage].width}x2" + ";" * (len(self.stages) - 1 - stage)

    def check_width(self, width: int, stage: int) -> None:
        """Raise a UsageError for a width at which no block can be made."""

    def heads(self, width: int, stage: int = 0) -> int | None:  # noqa: ARG002
        """Attention heads of a block of that width, None where there is no rule."""
        return None

    # What all hosts share.

    @property
    def runs(self) -> nn.Module:
        """The module that takes `example`; for a model of encoder and decoder, the encoder."""
        return self.model

    @property
    def prefix(self) -> str:
        """The path of `runs` in the model, with a final dot unless it is the model itself."""
        return ""

    def container(self, stage: int) -> nn.ModuleList | nn.Sequential:
        found = self.model.get_submodule(self.stages[stage].path)
        assert isinstance(found, (nn.ModuleList, nn.Sequential))
        return found

    def blocks(self, stage: int) -> list[nn.Module]:
        where = self.stages[stage]
        return list(self.container(stage))[where.start : where.start + where.depth]

    def names(self) -> dict[str, list[str]]:
        """The names of all members of the lists that have blocks, by the path of the list."""
        return {stage.path: list(self.container(i)._modules) for i, stage in enumerate(self.stages)}

    def exchange(self, new: Sequence[Sequence[nn.Module]]) -> list[list[nn.Module]]:
        """Put new blocks in the place of each stage's blocks, which are returned."""
        old = []
        stages = []
        for number, (stage, blocks) in enumerate(zip(self.stages, new, strict=True)):
            container = self.container(number)
            members = list(container)
            end = stage.start + stage.depth
            old.append(members[stage.start : end])
            refill(container, [*members[: stage.start], *blocks, *members[end:]])
            stages.append(Stage(stage.path, stage.start, len(blocks), stage.width, stage.channel_dim))
        self.stages = tuple(stages)
        self.settle([stage.depth for stage in stages])
        return old

    def measure(self) -> Measured:
        """Counted on the meta device: nothing is computed."""
        counter = FlopCounterMode(display=False)
        macs: dict[nn.Module, int] = {}
        blocks = [self.blocks(stage) for stage in range(len(self.stages))]

        def before(block: nn.Module, _args: Any) -> None:
            macs[block] = -counter.get_total_flops() // 2

        def after(block: nn.Module, _args: Any, _output: Any) -> None:
            macs[block] += counter.get_total_flops() // 2

        with ExitStack() as hooks, counter:
            for block in (block for stage in blocks for block in stage):
                hooks.callback(block.register_forward_pre_hook(before).remove)
                hooks.callback(block.register_forward_hook(after).remove)
            self.run(self.runs, self.example)
        costs = tuple(tuple((count_params(block), macs.get(block, 0)) for block in stage) for stage in blocks)
        return Measured(count_params(self.model), counter.get_total_flops() // 2, costs)

    def find_stages(self, paths: Sequence[str] | None, channel_dim: int | None) -> tuple[Stage, ...]:
        """The stages of the model, or of the lists at `paths`, with widths seen in one pass on the meta device."""
        runs, prefix = self.runs, self.prefix
        found: list[tuple[str, int, list[nn.Module], int]] = []

        def look(model: nn.Module, *inputs: Any) -> None:
            for stack in find_blocks(model, *inputs):
                path, _, start = stack.name.partition("[")
                found.append((path, int(start.partition(":")[0] or 0), stack.blocks, stack.channel_dim))

        try:
            try:
                self.run(runs, self.example, look)
            except (RuntimeError, NotImplementedError):  # some models look at values
                if any(parameter.is_meta for parameter in runs.parameters()):
                    raise
                self.run = run_here
                self.run(runs, self.example, look)
        except UsageError as error:
            if paths is None:
                how = "name it with blocks='path.of.the.list' (command line: `stepify --blocks PATH`)"
                what = f"no list of residual blocks was recognised; {how}"
                raise UsageError(f"{type(self.model).__name__}: {what}") from error
        if paths is not None:
            found = [self._named(path, prefix, found) for path in paths]
        widths = self._widths(runs, [blocks[0] for _, _, blocks, _ in found], [channel_dim or dim for *_, dim in found])
        return tuple(
            Stage(prefix + path, start, len(blocks), width, dim if channel_dim is None else channel_dim)
            for (path, start, blocks, dim), width in zip(found, widths, strict=True)
        )

    def _named(
        self, path: str, prefix: str, found: list[tuple[str, int, list[nn.Module], int]]
    ) -> tuple[str, int, list[nn.Module], int]:
        inner = path.removeprefix(prefix)
        for stack in found:
            if stack[0] == inner:
                return stack
        try:
            members = self.model.get_submodule(path)
        except AttributeError as error:
            raise UsageError(f"blocks='{path}': {type(self.model).__name__} has no module of that name") from error
        if not isinstance(members, (nn.ModuleList, nn.Sequential)) or not len(members):
            raise UsageError(
                f"blocks='{path}' is a {type(members).__name__}; it must be a ModuleList or Sequential with members"
            )
        return inner, 0, list(members), -1

    def _widths(self, model: nn.Module, firsts: list[nn.Module], dims: list[int]) -> list[int]:
        """The channels of what each of these blocks is given."""
        shapes: dict[nn.Module, Tensor] = {}

        def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state, _ = carried(args, kwargs, None)
            assert state is not None
            shapes[block] = state

        with ExitStack() as hooks:
            for block in firsts:
                hooks.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            self.run(model, self.example)
        if missed := [name for name, module in model.named_modules() if module in firsts and module not in shapes]:
            raise UsageError(f"the example does not reach the block '{missed[0]}'; give another example= or blocks=")
        return [shapes[block].shape[dim] for block, dim in zip(firsts, dims, strict=True)]


class DonorHost(Host):
    """A host whose blocks are taken from donors: the same model made at another width by its own library.

    An adapter makes a donor (`make_donor`) and finds the blocks in it (`donor_blocks`). `options` are added to those a
    donor is made with; `heads` is the rule for attention heads.
    """

    def __init__(
        self,
        model: nn.Module,
        heads: str,
        blocks: Sequence[str] | None = None,
        example: tuple[Any, ...] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.rule, self.options = heads, dict(options or {})
        self.donors: dict[tuple[int, int, str], list[nn.Module]] = {}
        self.depths: list[int] = []
        super().__init__(model, example or self.make_example(model), blocks=blocks)

    def make_example(self, model: nn.Module) -> tuple[Any, ...]:
        raise NotImplementedError

    def make_donor(self, width: int, stage: int) -> nn.Module:
        """The model with stage `stage` at that width and `self.depths` blocks."""
        raise NotImplementedError

    def donor_blocks(self, donor: nn.Module, stage: Stage) -> list[nn.Module]:
        raise NotImplementedError

    def prepare(self, depths: Sequence[int], origins: Sequence[Sequence[int]] | None = None) -> None:  # noqa: ARG002
        self.depths = list(depths)
        self.donors.clear()

    def make_block(self, width: int, index: int, stage: int = 0) -> nn.Module:
        key = (stage, width, str(torch.empty(0).device))
        if key not in self.donors:
            self.check_width(width, stage)
            self.donors[key] = self.donor_blocks(self.make_donor(width, stage), self.stages[stage])
        found = self.donors[key]
        if index >= len(found):
            where = self.stages[stage].path
            made = f"a {type(self.model).__name__} made at width {width}"
            raise UsageError(f"{made} has {len(found)} blocks at '{where}', but at least {index + 1} are needed")
        return found[index]


def run_on_meta(model: nn.Module, inputs: tuple[Any, ...], call: Callable[..., Any] | None = None) -> Any:
    """`call(model, *inputs)`, by default `model(*inputs)`, with every tensor on the meta device: shapes only."""
    shell = _Shell(model, call)
    state = {name: tensor.detach().to("meta") for name, tensor in (*shell.named_parameters(), *shell.named_buffers())}
    with evaluating(model), _set_for_meta(model), torch.enable_grad():  # hooks may ask for gradients of activations
        return functional_call(shell, state, tuple(x.to("meta") if isinstance(x, Tensor) else x for x in inputs))


def run_here(model: nn.Module, inputs: tuple[Any, ...], call: Callable[..., Any] | None = None) -> Any:
    """The same, computed on the model's own device."""
    device = next(model.parameters()).device
    with evaluating(model):
        return _Shell(model, call)(*(x.to(device) if isinstance(x, Tensor) else x for x in inputs))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _set_for_meta(model: nn.Module) -> Iterator[None]:
    """Settings of transformers that need no values, which meta tensors lack: a cache of keys and values, no search for
    padding, and experts as batched products, whose MACs are counted too. Blocks of other widths have configurations of
    their own.
    """
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    changed: dict[str, Any] = {"_experts_implementation_internal": "batched_mm", "pad_token_id": None}
    if getattr(model, "can_generate", bool)():
        changed["use_cache"] = True
    with ExitStack() as undo:
        for config in configs.values():
            for name, value in changed.items():
                if (before := getattr(config, name, None)) is not None:
                    undo.callback(setattr, config, name, before)
                    setattr(config, name, value)
        yield


class _Shell(nn.Module):
    """Any call on a model as a module, which is what functional_call takes."""

    def __init__(self, model: nn.Module, call: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs) if self.call is None else self.call(self.model, *inputs)


def refill(
    container: nn.ModuleList | nn.Sequential, members: Sequence[nn.Module], names: Sequence[str] | None = None
) -> None:
    """The members of a list, all exchanged, under `names`, or else "0", "1", …"""
    container._modules.clear()
    for name, member in zip(names or map(str, range(len(members))), members, strict=True):
        container.add_module(name, member)


def rename(model: nn.Module, names: Mapping[str, Sequence[str]]) -> None:
    """Give the members of lists the names that `Host.names` returned."""
    for path, own in names.items():
        container: Any = model.get_submodule(path)
        refill(container, list(container), own)


def period_of(pattern: Sequence[Any]) -> int:
    """The shortest period of a sequence: 6 for five local layers and a global one, repeated, the last repetition
    perhaps cut."""
    return next(
        size for size in range(1, len(pattern) + 1) if all(a == pattern[i % size] for i, a in enumerate(pattern))
    )


def first_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error).strip().partition("\n")[0])
