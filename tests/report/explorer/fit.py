"""Writes costs.json: python -m tests.report.explorer.fit (some minutes; after a new model or model type)."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any

import torch

from stepsnet.blocks.layers import SwiGLU
from stepsnet.cli.models import COSTS as COUNTED
from stepsnet.cost import count_activations, count_macs, count_params, run_on_meta
from stepsnet.macro import StepPlan
from stepsnet.models import Model, create_model, swin
from stepsnet.models.design import format_plans
from stepsnet.models.language import Transformer
from stepsnet.models.registry import VARIANTS
from stepsnet.planner.subject import plain_depths
from stepsnet.report.explorer import COSTS
from tests.report.explorer.polynomials import METRICS, Steps, Variables, fit

WIDEST = 2048
SIZES = ("plan", "embed_dim", "depth", "depths")
"""Options in which models of one kind differ."""
SPARE = 4
"""Samples more than unknowns: they must agree with the solution."""


def main() -> None:
    names: dict[str, str] = {}
    models = {}
    for row in json.loads(COUNTED.read_text(encoding="utf-8")):
        name = row["name"]
        variant = VARIANTS[name]
        options = {key: value for key, value in variant.options.items() if key not in SIZES}
        kind = names.setdefault(json.dumps([variant.family.family, options], sort_keys=True), name)
        models[name] = describe(row) | {"kind": kind}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        kinds = {name: pool.submit(own_kind, name) for name in names.values()}
        types = {model_type: pool.submit(host_kind, model_type) for model_type in TYPES}
        content = {
            "kinds": {name: found.result() for name, found in kinds.items()}, "models": models,
            "types": {name: found.result() for name, found in types.items()}, "tables": tables(),
        }  # fmt: skip
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    COSTS.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")


def describe(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the page has to know of a registered model besides its kind; `row` is that of `stepsnet models`."""
    options = VARIANTS[row["name"]].options
    plain = [
        StepPlan.residual(options.get("embed_dim", 64) * 2**stage, depth)
        for stage, depth in enumerate(plain_depths(row["name"]))
    ]
    family = VARIANTS[row["name"]].family
    return {
        "family": row["family"],
        "plan": row["plan"],
        "plain": format_plans(plain),
        "tokens": row["input_size"][0] if issubclass(family, Transformer) else None,
        "free": issubclass(family, swin.Swin),
    }


def tables() -> dict[str, dict[str, list[int]]]:
    """Variables that are no polynomials of the width: by family and letter, a list by width."""
    widths = range(WIDEST + 1)
    heads = [0, *(swin.heads_of(width) for width in widths[1:])]
    with torch.device("meta"):
        hidden = [SwiGLU(width).down.in_features if width and width % 2 == 0 else 0 for width in widths]
    return {"swin": {"h": heads}, "swinpp": {"h": heads}, "transformer": {"m": hidden}}


# Registered models


def own_kind(name: str) -> dict[str, Any]:
    """The polynomials of a kind, from networks of random plans and widths."""
    family = VARIANTS[name].family
    stages = len(create_model(name, device="meta").plans)
    ends = [str(number) for number in range(1, stages + 1)]
    if issubclass(family, Transformer):
        inside, outside = _each(["ww", "wm", "w", "m"], "T"), _each(["", "1"], "T")
    elif issubclass(family, swin.Swin):
        inside, outside = _each(["ww", "w", "h"]), _each(["", *ends, *(a + b for a, b in pairwise(ends))])
    else:  # the widths of a ResNet's stages are multiples of the first
        inside, outside = _each(["ww", "w"]), _each(["", "1", "11"])
    table = tables().get(family.family, {})
    unknowns = max(stages * len(inside[metric]) + len(outside[metric]) for metric in METRICS)
    rng = random.Random(0)
    samples = [_own_sample(name, table, rng) for _ in range(unknowns + SPARE)]
    return fit(samples, inside, outside)


def _each(monomials: Sequence[str], tokens: str = "") -> dict[str, list[str]]:
    """Monomials of each metric. In a text MACs grow with the tokens and their square, memory with the tokens."""
    linear = [m + tokens for m in monomials]
    squared = [m + 2 * tokens for m in monomials] if tokens else []
    memory = {"activations": linear, "kv_cache": linear}
    return {"blocks": [""], "layers": [""], "params": list(monomials), "macs": [*linear, *squared], **memory}


def _own_sample(
    name: str, table: Mapping[str, Sequence[int]], rng: random.Random
) -> tuple[list[Steps], Variables, dict[str, int]]:
    options, tokens = random_options(name, rng)
    model = create_model(name, device="meta", **options)
    stages, outside = variables_of(model.plans, table, tokens)
    return stages, outside, count(model)


def random_options(name: str, rng: random.Random) -> tuple[dict[str, Any], int]:
    """Options for `create_model`: a random plan, with the widths that the family allows; and the tokens of a text."""
    variant = VARIANTS[name]
    plain = create_model(name, device="meta").plans
    first = 2 * rng.randint(3, 20)
    ends = [first * 2**stage for stage in range(len(plain))]
    options: dict[str, Any] = {"embed_dim": first}
    if issubclass(variant.family, swin.Swin):  # each stage may end at any width
        ends = [rng.randint(4, 80) for _ in plain]
    plans = []
    for end in ends:
        narrow = rng.sample(range(2, end, 2), min(rng.randint(0, 2), len(range(2, end, 2))))
        plans.append(StepPlan((*sorted(narrow), end), (*(rng.randint(0, 2) for _ in narrow), rng.randint(1, 2))))
    options["plan"] = format_plans(plans)
    tokens = rng.randint(1, 40)
    if issubclass(variant.family, Transformer):
        options["seq_len"] = tokens
    return options, tokens


def variables_of(
    plans: Sequence[StepPlan], table: Mapping[str, Sequence[int]], tokens: int
) -> tuple[list[Steps], Variables]:
    """The variables of the steps, and of what is outside, of a model with these plans."""

    def step(width: int) -> Variables:
        return {"w": width, "T": tokens, **{letter: entries[width] for letter, entries in table.items()}}

    stages: list[Steps] = [
        [(step(width), depth) for width, depth in zip(plan.widths, plan.depths, strict=True)] for plan in plans
    ]
    return stages, {"T": tokens, **{str(i): plan.width for i, plan in enumerate(plans, start=1)}}


def count(model: Model) -> dict[str, int]:
    """All metrics of a model, counted."""
    found = vars(model.cost()) | vars(model.memory())
    return {metric: found[metric] for metric in METRICS}


# Models of transformers

# Letters, and the configuration's names for them.
LLAMA = {
    "width": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads",
    "key_heads": "num_key_value_heads", "head_dim": "head_dim", "m": "intermediate_size", "V": "vocab_size",
    "untied": "tie_word_embeddings", "A": "attention_bias", "B": "mlp_bias",
}  # fmt: skip
GPT2 = {
    "width": "n_embd", "depth": "n_layer", "heads": "n_head", "m": "n_inner", "V": "vocab_size", "P": "n_positions",
    "untied": "tie_word_embeddings",
}  # fmt: skip
VIT = {
    "width": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads", "m": "intermediate_size",
    "image": "image_size", "patch": "patch_size", "channels": "num_channels", "A": "qkv_bias",
}  # fmt: skip
TYPES = {"llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA, "gpt2": GPT2, "vit": VIT}
LABELS = 2  # what transformers gives a classifier whose configuration names no labels

_LINEAR = ["wq", "wk", "wm", "w", "q", "k", "m", "d", "Aw", "Aq", "Ak", "Bw", "Bm"]
_INSIDE = {
    "blocks": [""],
    "params": _LINEAR,
    "macs": [*(m + "T" for m in ("wq", "wk", "wm")), "qTT"],
    "activations": [m + "T" for m in ("w", "q", "k", "m")],
    "kv_cache": ["kT"],
}
_OUTSIDE = {
    "blocks": [""],
    "params": ["1V", "1Vu", "1P", "1x", "1T", "1L", "L", "1"],
    "macs": ["1VT", "1xT", "1x", "1L"],
    "activations": ["VT", "1T", "1", "L"],
    "kv_cache": [""],
}


def host_kind(model_type: str) -> dict[str, Any]:
    """The polynomials of a model type, from plain models of random configurations."""
    unknowns = max(len(_INSIDE[metric]) + len(_OUTSIDE[metric]) for metric in _INSIDE)
    rng = random.Random(0)
    samples = [_host_sample(model_type, rng) for _ in range(unknowns + SPARE)]
    return fit(samples, _INSIDE, _OUTSIDE) | rules_of(model_type)


def rules_of(model_type: str) -> dict[str, Any]:
    """Names and defaults of a configuration's entries; null where the default depends on others (width and heads)."""
    names = TYPES[model_type]
    config = make_config(model_type, {})
    other = make_config(model_type, {names["width"]: 96, names["heads"]: 6})
    known = {letter: name for letter, name in names.items() if hasattr(config, name)}
    defaults = {name: getattr(config, name) for name in known.values()}
    same = {name: default if getattr(other, name) == default else None for name, default in defaults.items()}
    sizes = {name: defaults[name] for name in (names["width"], names["heads"])}
    rotary = any("rotary" in type(module).__name__.lower() for module in make_host(config).modules())
    return {"names": known, "defaults": same | sizes, "rotary": rotary}


def make_config(model_type: str, options: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **options)


def make_host(config: Any) -> Any:
    """The model of a configuration, on the meta device."""
    import transformers

    images = config.model_type == "vit"
    auto: Any = transformers.AutoModelForImageClassification if images else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


def random_config(model_type: str, rng: random.Random) -> Any:
    """A small configuration of that type."""
    names = TYPES[model_type]
    heads = 2 ** rng.randint(1, 3)
    width = heads * 8 * rng.randint(1, 4)
    drawn = {
        "width": width, "depth": rng.randint(1, 3), "heads": heads, "key_heads": 2 ** rng.randint(0, 1),
        "head_dim": 4 * rng.randint(1, 6), "m": 4 * rng.randint(3, 60), "V": rng.randint(10, 200),
        "P": rng.randint(60, 90), "untied": rng.random() < 0.5, "A": rng.random() < 0.5, "B": rng.random() < 0.5,
        "image": 24, "patch": rng.choice((4, 6, 8)), "channels": rng.randint(1, 3),
    }  # fmt: skip
    known = make_config(model_type, {})
    options = {name: drawn[letter] for letter, name in names.items() if hasattr(known, name)}
    if model_type != "vit":
        options |= {"bos_token_id": None, "eos_token_id": None}
    return make_config(model_type, options)


def _host_sample(model_type: str, rng: random.Random) -> tuple[list[Steps], Variables, dict[str, int]]:
    config = random_config(model_type, rng)
    tokens = rng.randint(1, 24)
    inside, outside = host_variables(config, tokens)
    depth = getattr(config, TYPES[model_type]["depth"])
    return [[(inside, depth)]], outside, count_host(make_host(config), tokens)


def host_variables(config: Any, tokens: int) -> tuple[Variables, Variables]:
    """The variables of a block of the configuration, and of what is outside."""
    names = TYPES[config.model_type]
    known: dict[str, Any] = {letter: getattr(config, name, None) for letter, name in names.items()}
    width, heads = known["width"], known["heads"]
    dim = known.get("head_dim") or width // heads
    keys = known.get("key_heads") or heads
    if config.model_type == "vit":
        tokens = (known["image"] // known["patch"]) ** 2 + 1
    inside: dict[str, int] = {
        "w": width, "q": heads * dim, "k": keys * dim, "d": dim, "m": known["m"] or 4 * width, "T": tokens,
        "A": int(bool(known.get("A"))), "B": int(bool(known.get("B"))),
    }  # fmt: skip
    outside: dict[str, int] = {
        "1": width, "T": tokens, "V": known.get("V") or 0, "P": known.get("P") or 0,
        "u": int(known.get("untied") is False), "L": LABELS if config.model_type == "vit" else 0,
        "x": known["channels"] * known["patch"] ** 2 if config.model_type == "vit" else 0,
    }  # fmt: skip
    return inside, outside


def count_host(model: Any, tokens: int) -> dict[str, int]:
    """All metrics of a model of transformers, counted. Its blocks are counted by its plan, its layers not at all."""
    config = model.config
    if config.model_type == "vit":
        x = torch.empty(1, config.num_channels, config.image_size, config.image_size, device="meta")
        cache = 0
    else:
        x = torch.zeros(1, tokens, dtype=torch.long, device="meta")
        cache = sum(_cached(run_on_meta(model, x)))
    return {
        "blocks": getattr(config, TYPES[config.model_type]["depth"]), "params": count_params(model),
        "macs": count_macs(model, x), "activations": count_activations(model, x), "kv_cache": cache,
    }  # fmt: skip


def _cached(output: Any) -> Iterator[int]:
    for layer in output.past_key_values.layers:
        for tensor in (layer.keys, layer.values):
            yield tensor.numel() * tensor.element_size()


if __name__ == "__main__":
    main()
