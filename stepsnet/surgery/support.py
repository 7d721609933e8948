"""Which models of timm and transformers can be stepified and deepened: `python -m stepsnet.surgery.support` prints
tables.

Nothing is downloaded. `TIMM` and `TRANSFORMERS` are tiny models with random weights, on which both functions are
verified; the contract tests use them too. `--uses` tries what a stepified model is used for (uses.py). `--families`
goes through every module of timm, with one full-size model of each on the meta device.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models.design import STEPPED_STAGES, format_plans
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision, import_torchvision_if_installed
from stepsnet.surgery.deepen import deepen
from stepsnet.surgery.hosts import Host, first_line
from stepsnet.surgery.report import surgery_report
from stepsnet.surgery.stepify import find_host, stepify
from stepsnet.surgery.uses import USES, make_subject

_PLAIN = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4}
_STAGED = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (2, 2, 4),
    "num_heads": (1, 2, 4),
}
_RESNET = {"layers": (2, 2, 3, 5), "channels": (8, 16, 32, 64)}
TIMM: dict[str, dict[str, Any]] = {
    "vit_small_patch16_224": _PLAIN,
    "deit_small_patch16_224": _PLAIN,
    "deit3_small_patch16_224": _PLAIN,
    "vit_small_patch14_dinov2": _PLAIN,
    "vit_small_patch16_dinov3": _PLAIN,
    "eva02_small_patch14_224": {**_PLAIN, "scale_mlp": True},
    "beit_base_patch16_224": _PLAIN,
    "cait_xxs24_224": _PLAIN,
    "xcit_nano_12_p8_224": _PLAIN,
    "vit_relpos_small_patch16_224": _PLAIN,
    "swin_tiny_patch4_window7_224": _STAGED,
    "swinv2_tiny_window8_256": _STAGED,
    "davit_tiny": {"embed_dims": (16, 24, 32, 64), "depths": (1, 1, 2, 4), "num_heads": (1, 3, 2, 4)},
    "convnext_atto": {"dims": (16, 24, 32, 64), "depths": (1, 2, 2, 4)},
    "mambaout_femto": {"dims": (16, 24, 32, 64), "depths": (1, 2, 2, 4)},
    "pvt_v2_b0": {"embed_dims": (16, 24, 32, 64), "depths": (1, 2, 2, 4), "num_heads": (1, 3, 2, 4)},
    "fasternet_t0": {"embed_dim": 16, "depths": (1, 2, 2, 4)},
    "repvit_m1": {"embed_dim": (16, 24, 32, 64), "depth": (1, 2, 2, 4)},
    "resnet18": _RESNET,
    "resnet50": _RESNET,
    "resnetv2_18": _RESNET,
}
"""Options that make models of timm tiny."""

_TEXT = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "vocab_size": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_TEXT, "num_key_value_heads": 4}
_IMAGE = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "image_size": 32,
    "patch_size": 8,
}
_WINDOWS = {
    "embed_dim": 16,
    "depths": [2, 2, 4],
    "num_heads": [2, 4, 8],
    "image_size": 32,
    "patch_size": 2,
    "window_size": 4,
}
_STAGES = {"hidden_sizes": [16, 32, 64], "depths": [2, 2, 4], "num_stages": 3, "image_size": 32}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", _GROUPED),
    "Qwen2ForCausalLM": ("Qwen2Config", _GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "MistralForCausalLM": ("MistralConfig", _GROUPED),
    "Gemma2ForCausalLM": ("Gemma2Config", {**_GROUPED, "head_dim": 8}),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {**_GROUPED, "head_dim": 8, "num_hidden_layers": 7, "sliding_window": 4}),
    "Phi3ForCausalLM": ("Phi3Config", _GROUPED),
    "Olmo2ForCausalLM": ("Olmo2Config", _GROUPED),
    "MixtralForCausalLM": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {
            "n_embd": 64,
            "n_head": 8,
            "n_layer": 4,
            "vocab_size": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "n_positions": 32,
        },
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", _TEXT),
    "BertForMaskedLM": ("BertConfig", _TEXT),
    "RobertaForMaskedLM": ("RobertaConfig", {**_TEXT, "pad_token_id": 1}),
    "ModernBertForMaskedLM": ("ModernBertConfig", {**_TEXT, "cls_token_id": 1, "sep_token_id": 2}),
    "ViTForImageClassification": ("ViTConfig", _IMAGE),
    "BeitForImageClassification": ("BeitConfig", _IMAGE),
    "Dinov2ForImageClassification": (
        "Dinov2Config",
        {key: value for key, value in _IMAGE.items() if key != "intermediate_size"},
    ),
    "DINOv3ViTModel": ("DINOv3ViTConfig", _IMAGE),
    "SwinForImageClassification": ("SwinConfig", _WINDOWS),
    "Swinv2ForImageClassification": ("Swinv2Config", _WINDOWS),
    "ConvNextForImageClassification": ("ConvNextConfig", _STAGES),
    "ConvNextV2ForImageClassification": ("ConvNextV2Config", _STAGES),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {
            "d_model": 64,
            "encoder_layers": 4,
            "decoder_layers": 2,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "vocab_size": 40,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "max_source_positions": 16,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 64, "n_head": 8, "n_layer": 4, "vocab_size": 40}),
    "T5EncoderModel": (
        "T5Config",
        {"d_model": 64, "num_heads": 8, "d_ff": 128, "num_layers": 4, "vocab_size": 40, "d_kv": 8},
    ),
}
"""Configurations of tiny models. The last two cannot be stepified."""


@dataclass(frozen=True)
class Row:
    """What happened to one model: a plan or a sentence for each function."""

    model: str
    stepify: str
    deepen: str


def make_timm(name: str) -> nn.Module:
    import_torchvision()
    model: nn.Module = require("timm", extra="timm").create_model(name, num_classes=4, **TIMM[name])
    return model


def make_transformers(name: str) -> nn.Module:
    import_torchvision_if_installed()
    library = require("transformers", extra="transformers")
    config, options = TRANSFORMERS[name]
    model: nn.Module = getattr(library, name)(getattr(library, config)(**options))
    return model


def narrow_width(host: Host, stage: int) -> int:
    """About half the width of a stage, at which its blocks can be made."""
    unit = host.unit(stage)
    return unit * max(1, round(host.stages[stage].width / 2 / unit))


def two_steps(host: Host) -> str:
    """A plan with two steps, the first of half the width, in the last stages."""
    plans = [StepPlan.residual(stage.width, stage.depth) for stage in host.stages]
    for number in range(max(0, len(plans) - STEPPED_STAGES), len(plans)):
        stage, narrow = host.stages[number], narrow_width(host, number)
        if narrow < stage.width:
            plans[number] = StepPlan((narrow, stage.width), (stage.depth, max(1, stage.depth // 2)))
    if all(len(plan) == 1 for plan in plans):
        raise UsageError("no narrower width is possible")
    return format_plans(plans)


def verified(names: list[str], make: Callable[[str], nn.Module], options: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Both functions on tiny models: stepify with two steps, deepen with narrow blocks between the old ones."""

    def stepped(name: str) -> str:
        model = make(name)
        plan = two_steps(find_host(model, options=options.get(name)))
        stepify(model, plan, options=options.get(name))
        return f"yes: {plan}"

    def deepened(name: str) -> str:
        model = make(name)
        host = find_host(model, options=options.get(name))
        longest = max(range(len(host.stages)), key=lambda stage: host.stages[stage].depth)
        deepen(model, f"{narrow_width(host, longest)}x2", at="every:2", options=options.get(name))
        return f"yes: max |Δ| = {surgery_report(model).difference:g}"

    for name in names:
        yield Row(name, _or_why(stepped, name), _or_why(deepened, name))


def tried(
    names: list[str], make: Callable[[str], nn.Module], options: dict[str, dict[str, Any]]
) -> Iterator[list[str]]:
    """The name of each model, then "yes" or why not for every use of USES."""

    def attempt(name: str, use: str, *, plain: bool) -> str:
        model = make(name)
        host = find_host(model, options=options.get(name))
        if not plain:
            stepify(model, two_steps(host), options=options.get(name))
        return USES[use](make_subject(model, host)) or "yes"

    for name in names:
        cells = [name]
        for use in USES:
            found = _or_why(partial(attempt, use=use, plain=False), name)
            if found.startswith("no") and _or_why(partial(attempt, use=use, plain=True), name).startswith("no"):
                found = "the library cannot"
            cells.append(found)
        yield cells


def families() -> Iterator[Row]:
    """One model of every module of timm, stepified on the meta device."""
    import_torchvision()
    timm = require("timm", extra="timm")

    def stepped(name: str) -> str:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        plan = two_steps(find_host(model))
        stepify(model, plan)
        return f"yes: {plan}"

    for family in timm.list_modules():
        if names := timm.list_models(module=family):
            name = min(names, key=lambda name: (_size(name), len(name), name))
            yield Row(f"{family}: {name}", _or_why(stepped, name), "")


def _size(name: str) -> int:
    """Small models first, by their names; test models are too small for steps."""
    sizes = ("atto", "pico", "nano", "_xxs", "tiny", "_xs", "xs_", "_s0", "18", "small", "_s", "_b0", "_t")
    return 99 if name.startswith("test_") else next((i for i, part in enumerate(sizes) if part in name), 50)


def _or_why(what: Callable[[str], str], name: str) -> str:
    try:
        return what(name)
    except UsageError as error:
        return f"no: {error}"
    except (RuntimeError, AssertionError, TypeError, ValueError, LookupError) as error:
        return f"no: {type(error).__name__}: {first_line(error)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stepsnet.surgery.support", description=__doc__)
    parser.add_argument("--families", action="store_true", help="stepify one full-size model of every module of timm")
    parser.add_argument("--uses", action="store_true", help="try what a stepified model is used for")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    groups: tuple[Any, ...] = ((list(TIMM), make_timm, TIMM), (list(TRANSFORMERS), make_transformers, {}))
    rows: Iterable[list[str]]
    if args.uses:
        titles, rows = ["model", *USES], (cells for group in groups for cells in tried(*group))
    else:
        titles = ["model", "stepify", "deepen"]
        found = families() if args.families else (row for group in groups for row in verified(*group))
        rows = ([row.model, row.stepify, row.deepen] for row in found)
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
