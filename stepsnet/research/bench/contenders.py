"""Who runs against whom: our model in the way asked for, timm's twin of it, its plain baseline, or itself in another runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, VisionModel, compile_blocks, create_model, fold, get_variant, list_models
from stepsnet.research.bench.machine import DTYPES
from stepsnet.research.bench.passes import count_classes, inference_pass, training_pass

RIVALS = ("timm", "baseline", "eager", "onnxruntime", "openvino")
OURS = "stepsnet"


@dataclass(frozen=True)
class How:
    """What is done to a model before it is timed."""

    mode: str = "inference"
    dtype: str = "fp32"
    compile: bool = False
    fold: bool = False
    channels_last: bool = False

    def __str__(self) -> str:
        done = [word for word, asked in (("compiled", self.compile), ("folded", self.fold), ("channels-last", self.channels_last)) if asked]
        return ", ".join([*done, *([self.dtype] if self.dtype != "fp32" else [])])


@dataclass(frozen=True)
class Contender:
    """Something that takes a batch. `same_weights`: it should answer as the first of its group does."""

    label: str
    model: Model
    """Whose sizes and costs it has; what runs is `forward`, and in training `module`."""
    how: How
    forward: Callable[[Tensor], Any]
    module: nn.Module | None = None
    same_weights: bool = True
    precision: str = "fp32"
    """What it computes in, whatever it is given."""

    def input(self, x: Tensor) -> Tensor:
        """The batch as this contender likes it: its precision (autocast does that in training), its memory layout."""
        if x.is_floating_point():
            x = x.to(DTYPES[self.how.dtype]) if self.how.mode == "inference" else x
            x = x.contiguous(memory_format=torch.channels_last) if self.how.channels_last else x
        return x

    def one_pass(self, batch: Tensor) -> Callable[[], object]:
        x = self.input(batch)
        if self.how.mode == "inference":
            return inference_pass(self.forward, x)
        assert self.module is not None  # a runtime that only infers was refused before
        return training_pass(self.module, x, count_classes(self.model), bf16=self.how.dtype == "bf16")

    def answer(self, batch: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.forward(self.input(batch)).float()


def make_contenders(model: Model, against: Sequence[str], how: How, *, alike: bool, scratch: Path) -> list[Contender]:
    """The rivals in the order asked for, the first of them the reference, then our model. `alike`: timm's is readied as ours."""
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
    return Contender(f"{label}, {words}" if words and words not in label else label, model, how, ready, ready, precision=how.dtype)


def ready_module(module: nn.Module, how: How) -> nn.Module:
    """The module in the mode, precision and layout asked for, folded and compiled where asked."""
    module = module.train(how.mode == "training")
    if how.fold:
        module = fold(module)
    if how.mode == "inference":
        module = module.to(DTYPES[how.dtype])
    if how.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _compile(module) if how.compile else module


def _compile(module: nn.Module) -> nn.Module:
    """In place: ours block by block, another library's as a whole."""
    if isinstance(module, Model):
        return compile_blocks(module)
    module.compile()
    return module


def _timm_twin(model: Model) -> nn.Module:
    from stepsnet.integrations.timm_twin import timm_twin

    return timm_twin(model)


def baseline_of(model: Model) -> str:
    """The registered plain network of a Steps model: the one named alike, or of the same options but the plan, or that it is a plan of."""
    name = str(model.default_cfg["architecture"])
    variant, names = get_variant(name), list_models()
    if "plan" not in variant.options and all(len(plan) == 1 for plan in model.plans):
        twins = [other for other in names if "steps_" in other and other.replace("steps_", "", 1) == name]
        known = f"; its Steps twin is {twins[0]}" if twins else ""
        raise UsageError(f"{name} is a plain network already and has no baseline{known}")
    plain = {key: value for key, value in variant.options.items() if key != "plan"}
    alike = [other for other in names if get_variant(other).family is variant.family and get_variant(other).options == plain]
    named = name.replace("steps_", "", 1)
    if named not in names and not alike:
        raise UsageError(f"no plain network is registered that {name} could be compared with")
    return named if named in names else alike[0]


def _baseline(model: Model, how: How) -> Contender:
    """The baseline at the same picture or sequence size and with as many classes."""
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
        raise UsageError(f"{runtime} runs exported models, which do not train; leave out --mode training")


def _to_export(model: Model, how: How) -> Model:
    copied = deepcopy(model).eval()
    return fold(copied) if how.fold else copied
