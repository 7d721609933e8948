"""Throughput of models side by side: against timm, the plain baseline or other runtimes, or against the first model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, VisionModel, compile_blocks, create_model, fold, get_variant, list_models
from stepsnet.research.bench.timing import (
    DTYPES,
    TIMES_FORWARD,
    WHAT_IS_TIMED,
    Quartiles,
    count_classes,
    describe_machine,
    inference_pass,
    interleave,
    matmul_peak,
    random_batch,
    speed_ratios,
    training_pass,
)

OURS = "stepsnet"
SEED = 0


@dataclass(frozen=True)
class How:
    """How a model is prepared before it is timed."""

    mode: str = "inference"
    dtype: str = "fp32"
    compile: bool = False
    fold: bool = False
    channels_last: bool = False

    def __str__(self) -> str:
        chosen = {"compiled": self.compile, "folded": self.fold, "channels-last": self.channels_last}
        words = [word for word, asked in chosen.items() if asked]
        return ", ".join([*words, *([self.dtype] if self.dtype != "fp32" else [])])


@dataclass(frozen=True)
class Contender:
    """One of the compared. `same_weights`: its outputs should equal those of the first of its group."""

    label: str
    model: Model
    """Gives sizes and cost; what runs is `forward`, and in training `module`."""
    how: How
    forward: Callable[[Tensor], Any]
    module: nn.Module | None = None
    same_weights: bool = True
    precision: str = "fp32"
    """The precision it computes in."""

    def input(self, x: Tensor) -> Tensor:
        """The batch in this contender's precision (inference; training uses autocast) and memory layout."""
        if x.is_floating_point():
            x = x.to(DTYPES[self.how.dtype]) if self.how.mode == "inference" else x
            x = x.contiguous(memory_format=torch.channels_last) if self.how.channels_last else x
        return x

    def one_pass(self, batch: Tensor) -> Callable[[], object]:
        x = self.input(batch)
        if self.how.mode == "inference":
            return inference_pass(self.forward, x)
        assert self.module is not None  # inference-only runtimes were refused before
        return training_pass(self.module, x, count_classes(self.model), bf16=self.how.dtype == "bf16")

    def answer(self, batch: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.forward(self.input(batch)).float()


def make_contenders(model: Model, against: Sequence[str], how: How, *, alike: bool, scratch: Path) -> list[Contender]:
    """The rivals in the given order, the first is the reference; then our model. `alike`: prepare timm's as ours."""
    plain = how if alike else replace(how, compile=False, fold=False, channels_last=False)
    makers: dict[str, Callable[[], Contender]] = {
        "timm": lambda: _from_module("timm", model, _timm_twin(model), plain),
        "baseline": lambda: _baseline(model, how),
        "eager": lambda: _from_module(f"{OURS}, eager fp32", model, deepcopy(model), How(how.mode)),
        "onnxruntime": lambda: _onnxruntime(model, how, scratch),
        "openvino": lambda: _openvino(model, how, scratch),
    }
    return [*(makers[rival]() for rival in against), ours(OURS, model, how)]


def ours(label: str, model: Model, how: How) -> Contender:
    return _from_module(label, model, deepcopy(model), how)


def _from_module(label: str, model: Model, module: nn.Module, how: How) -> Contender:
    ready = ready_module(module, how)
    words = str(how)
    label = f"{label}, {words}" if words and words not in label else label
    return Contender(label, model, how, ready, ready, precision=how.dtype)


def ready_module(module: nn.Module, how: How) -> nn.Module:
    """The module in the given mode, precision and layout, folded and compiled where asked."""
    module = module.train(how.mode == "training")
    if how.fold:
        module = fold(module)
    if how.mode == "inference":
        module = module.to(DTYPES[how.dtype])
    if how.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _compile(module) if how.compile else module


def _compile(module: nn.Module) -> nn.Module:
    """In place: our models block by block, others as a whole."""
    if isinstance(module, Model):
        return compile_blocks(module)
    module.compile()
    return module


def _timm_twin(model: Model) -> nn.Module:
    from stepsnet.integrations.timm import timm_twin

    return timm_twin(model)


def baseline_of(model: Model) -> str:
    """The registered plain network of a Steps model: by its name, or the one with the same options but the plan."""
    name = str(model.default_cfg["architecture"])
    variant, names = get_variant(name), list_models()
    if "plan" not in variant.options and all(len(plan) == 1 for plan in model.plans):
        versions = [other for other in names if "steps_" in other and other.replace("steps_", "", 1) == name]
        known = f"; its StepsNet version is {versions[0]}" if versions else ""
        raise UsageError(f"{name} is already a plain network and has no baseline{known}")
    plain = {key: value for key, value in variant.options.items() if key != "plan"}
    related = [other for other in names if get_variant(other).family is variant.family]
    alike = [other for other in related if get_variant(other).options == plain]
    named = name.replace("steps_", "", 1)
    if named not in names and not alike:
        raise UsageError(f"no plain network is registered to compare {name} with")
    return named if named in names else alike[0]


def _baseline(model: Model, how: How) -> Contender:
    """The baseline with the same image or sequence size and classes."""
    name = baseline_of(model)
    if isinstance(model, VisionModel):
        _, height, width = model.input_size
        other = create_model(name, img_size=(height, width), num_classes=model.num_classes)
    else:
        other = create_model(name, seq_len=model.input_size[0], vocab_size=count_classes(model))
    return replace(_from_module(name, other, other, how), same_weights=False)


def _onnxruntime(model: Model, how: How, scratch: Path) -> Contender:
    from stepsnet import export

    _only_inference("onnxruntime", how)
    path = export.to_onnx(_to_export(model, how), scratch / "model.onnx")
    return Contender("onnxruntime, exported here", model, How(), export.onnx_session(path, torch.get_num_threads()))


def _openvino(model: Model, how: How, scratch: Path) -> Contender:
    from stepsnet import export

    _only_inference("openvino", how)
    path = export.to_openvino(_to_export(model, how), scratch / "model.xml")
    precision = "bf16" if how.dtype == "bf16" else "f32"
    forward = export.openvino_callable(path, torch.get_num_threads(), precision=precision)
    return Contender(f"openvino {precision}, exported here", model, How(), forward, precision=how.dtype)


def _only_inference(runtime: str, how: How) -> None:
    if how.mode == "training":
        raise UsageError(f"{runtime} runs exported models, which cannot be trained; leave out --mode training")


def _to_export(model: Model, how: How) -> Model:
    copied = deepcopy(model).eval()
    return fold(copied) if how.fold else copied


@dataclass(frozen=True)
class SpeedSettings:
    """Every combination of batch, mode and precision is one case."""

    against: tuple[str, ...] = ()
    batches: tuple[int, ...] = (8,)
    modes: tuple[str, ...] = ("inference",)
    dtypes: tuple[str, ...] = ("fp32",)
    rounds: int = 9
    warm_up: int = 1
    compile: bool = False
    fold: bool = False
    channels_last: bool = False
    alike: bool = False

    def hows(self) -> list[How]:
        options = (self.compile, self.fold, self.channels_last)
        return [How(mode, dtype, *options) for dtype, mode in product(self.dtypes, self.modes)]

    def count_passes(self, models: int) -> int:
        """The number of passes, for a progress bar."""
        contenders = models * (1 + len(self.against))
        return contenders * len(self.hows()) * len(self.batches) * (self.rounds + self.warm_up)


@dataclass(frozen=True)
class ContenderResult:
    """One contender of one case. Ratios are speeds over the reference's, per round; above 1 is faster."""

    label: str
    model: str
    blocks: int | None
    macs: int
    seconds: list[float]
    time: Quartiles
    ratio: Quartiles
    ratio_per_mac: Quartiles
    throughput: float
    gflops: float
    share_of_peak: float
    difference: float | None
    """The largest difference of its outputs from the reference's, if the weights are the same."""


@dataclass(frozen=True)
class Case:
    model: str | None
    """None if several models are compared with each other."""
    mode: str
    batch: int
    dtype: str
    unit: str
    contenders: list[ContenderResult]
    """The first is the reference."""


class Peaks(dict[str, float]):
    """FLOP/s of the fastest matrix product by precision, measured at first use: only what is benchmarked."""

    def __init__(self, measure: Callable[[str], float]) -> None:
        super().__init__()
        self.measure = measure

    def __missing__(self, dtype: str) -> float:
        self[dtype] = self.measure(dtype)
        return self[dtype]


def run_speed(
    models: Mapping[str, Model], settings: SpeedSettings, *, tick: Callable[[], None] = lambda: None,
    peak: Callable[[str], float] = matmul_peak,
) -> dict[str, Any]:
    """All cases as one JSON object with the machine, the settings and the measured peak."""
    peaks = Peaks(peak)
    cases = [
        measure_case(name, group, how, batch, settings, peaks, tick)
        for name, how, group in _groups(models, settings)
        for batch in settings.batches
    ]
    return {
        "benchmark": "speed",
        "machine": describe_machine(),
        "settings": asdict(settings),
        "timed": {mode: WHAT_IS_TIMED[mode] for mode in settings.modes},
        "peak_gflops": {dtype: flops / 1e9 for dtype, flops in peaks.items()},
        "cases": [asdict(case) for case in cases],
    }


def _groups(models: Mapping[str, Model], settings: SpeedSettings) -> Iterator[tuple[str | None, How, list[Contender]]]:
    """The contenders of each group, built when needed."""
    if not settings.against:
        for how in settings.hows():
            yield None, how, [replace(ours(name, model, how), same_weights=False) for name, model in models.items()]
        return
    for (name, model), how in product(models.items(), settings.hows()):
        with tempfile.TemporaryDirectory() as scratch:
            yield name, how, make_contenders(model, settings.against, how, alike=settings.alike, scratch=Path(scratch))


def measure_case(
    name: str | None, group: Sequence[Contender], how: How, batch: int, settings: SpeedSettings,
    peaks: Peaks, tick: Callable[[], None],
) -> Case:
    """Time one group on one batch."""
    torch.manual_seed(SEED)
    inputs = [random_batch(contender.model, batch) for contender in group]
    alike = [inputs[0] if contender.same_weights else x for contender, x in zip(group, inputs, strict=True)]
    differences = _differences(group, inputs[0]) if how.mode == "inference" else [None] * len(group)
    passes = [contender.one_pass(x) for contender, x in zip(group, alike, strict=True)]
    seconds = interleave(passes, rounds=settings.rounds, warm_up=settings.warm_up, tick=tick)
    macs = [contender.model.cost().macs for contender in group]
    measured = []
    for index, contender in enumerate(group):
        time = Quartiles.of(seconds[index])
        ratios = speed_ratios(seconds[0], seconds[index])
        flops = 2 * macs[index] * batch * TIMES_FORWARD[how.mode] / time.median
        measured.append(
            ContenderResult(
                label=contender.label,
                model=contender.model.default_cfg.get("architecture", type(contender.model).__name__),
                blocks=contender.model.cost().blocks,
                macs=macs[index],
                seconds=seconds[index],
                time=time,
                ratio=Quartiles.of(ratios),
                ratio_per_mac=Quartiles.of([ratio * macs[index] / macs[0] for ratio in ratios]),
                throughput=batch / time.median,
                gflops=flops / 1e9,
                share_of_peak=flops / peaks[contender.precision],
                difference=differences[index],
            )
        )
    unit = "images" if isinstance(group[0].model, VisionModel) else "sequences"
    return Case(name, how.mode, batch, how.dtype, unit, measured)


def _differences(group: Sequence[Contender], x: Tensor) -> list[float | None]:
    """The largest difference from the reference's outputs, if the weights are the same."""
    reference, *others = group
    if not reference.same_weights or not any(other.same_weights for other in others):
        return [None] * len(group)
    expected = reference.answer(x)
    return [None, *(float((o.answer(x) - expected).abs().max()) if o.same_weights else None for o in others)]
