"""Measurements beside those of `stepsnet bench`: construction, compile time, generation, and parts of a forward pass.

    python -m stepsnet.research.bench.checks construction [--rounds 7] [--out FOLDER] [--json]
    python -m stepsnet.research.bench.checks compile [--families deit swin] [--whole] [--training]
    python -m stepsnet.research.bench.checks generation [--model steps_transformer_30m] [--rounds 7] [--json]
    python -m stepsnet.research.bench.checks parts [MODELS…] [--batch 8] [--rounds 7]

construction: seconds to build the deepest networks, to write them and to read them (from the page cache), in turns. "on
meta" builds the structure without weights, as counting and loading do. Target: 482 layers are built in under 1.5 s.
compile: compile time of 96 blocks against 24, block by block, each in a new interpreter with an empty cache. Target:
under 3 times.
generation: tokens per second with and without the key/value cache, from 448 to 512 tokens, batch 1. Target: 5 times.
parts: time in matrix products, attention and the rest of a forward pass, by torch's profiler; medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from stepsnet.files import write_json
from stepsnet.models import create_model, load_model, save_model
from stepsnet.models.language import Transformer
from stepsnet.report.bench import machine_line, tables_of
from stepsnet.research.bench.timing import Quartiles, describe_machine, interleave, threads
from stepsnet.tasks.generation import Sampling, generate_tokens

DEEPEST = ("deit_deep_d96", "steps_deit_deep_d96", "steps_swin_deep_d96")
BUILD_SECONDS = 1.5
COMPILE_RATIO = 3.0
COMPILED = {  # width, and plans of 24 and of 96 blocks: narrow networks, so that the compiler's time dominates
    "deit": (64, "32x12, 48x6, 64x6", "32x48, 48x24, 64x24"),
    "swin": (8, "8x2; 16x2; 16x8, 24x4, 32x4; 64x4", "8x2; 16x2; 16x44, 24x22, 32x22; 64x4"),
}
COMPILE_CHILD = """
import json, sys, time, torch
from stepsnet import compile_blocks, create_model
task = json.loads(sys.argv[1])
torch.manual_seed(0)
model = create_model(f"test_{task['family']}", embed_dim=task["width"], plan=task["plan"]).train(task["training"])
run = compile_blocks(model) if task["way"] == "by blocks" else torch.compile(model)
x = torch.randn(2, *model.input_size)
def call():
    began = time.perf_counter()
    with torch.set_grad_enabled(task["training"]):
        y = run(x)
        if task["training"]:
            y.square().mean().backward()
    return time.perf_counter() - began
first, second = call(), call()
print(json.dumps({"blocks": len(model.blocks_in_order()), "seconds": first - second}))
"""
PROMPT, TOTAL = 448, 512
CACHE_RATIO = 5.0
PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "mkldnn_convolution", "_convolution_pointwise")
PROFILED = ("swin_deep_d96", "steps_swin_deep_d96", "deit_tiny", "steps_deit_tiny")


def construction(args: argparse.Namespace) -> int:
    torch.manual_seed(0)
    with threads(args.threads), tempfile.TemporaryDirectory() as folder:
        rows = [_construct(name, args.rounds, Path(folder)) for name in DEEPEST]
        command = f"python -m stepsnet.research.bench.checks construction --rounds {args.rounds}"
        document = {
            "command": command, "benchmark": "construction", "machine": describe_machine(), "rows": rows,
        }  # fmt: skip
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / "result.json", document)
    tables = [*(table.markdown() for table in tables_of(document)), machine_line(document)]
    print(json.dumps(document, indent=2) if args.json else "\n".join(tables))
    return 0 if all(row["make"]["median"] < BUILD_SECONDS for row in rows) else 1


def _construct(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    file = folder / f"{name}.safetensors"
    model = create_model(name)
    save_model(model, file)
    passes: dict[str, Callable[[], object]] = {
        "make": partial(create_model, name),
        "make_on_meta": partial(create_model, name, device="meta"),
        "write": partial(save_model, model, file),
        "read": partial(load_model, file),
    }
    seconds = interleave(list(passes.values()), rounds=rounds)
    cost = model.cost()
    times = {what: asdict(Quartiles.of(found)) for what, found in zip(passes, seconds, strict=True)}
    size = {"blocks": cost.blocks, "layers": cost.layers, "params": cost.params, "bytes": file.stat().st_size}
    return {"model": name, **size, **times}


def compile_time(args: argparse.Namespace) -> int:
    reached = True
    for family in args.families:
        width, *plans = COMPILED[family]
        for way in ("by blocks", "as a whole") if args.whole else ("by blocks",):
            task = {"family": family, "width": width, "way": way, "training": args.training}
            shallow, deep = (_compile_once({**task, "plan": plan}) for plan in plans)
            ratio = deep["seconds"] / shallow["seconds"]
            print(
                f"{family}, {way}: {ratio:.2f} times as long for {deep['blocks']:.0f} blocks as for "
                f"{shallow['blocks']:.0f} ({deep['seconds']:.1f} s and {shallow['seconds']:.1f} s; target under "
                f"{COMPILE_RATIO:.0f} times)"
            )
            reached &= way != "by blocks" or ratio < COMPILE_RATIO
    return 0 if reached else 1


def _compile_once(task: dict[str, object]) -> dict[str, float]:
    """Blocks and seconds of the first call less those of a second."""
    with tempfile.TemporaryDirectory() as cache:
        alone = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, "-c", COMPILE_CHILD, json.dumps(task)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | alone)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def generation(args: argparse.Namespace) -> int:
    with threads(args.threads or 1):
        found = _generate(args.model, args.rounds)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['model']}, {PROMPT} to {TOTAL} tokens, batch 1, {found['threads']} thread(s), median of "
            f"{found['rounds']} rounds:\n"
            f"  with cache    {found['tokens_per_second_with_cache']:8.1f} tokens/s\n"
            f"  without       {found['tokens_per_second_without']:8.1f} tokens/s\n"
            f"  ratio {found['ratio']:.1f} × (lowest {found['lowest_ratio']:.1f} ×, target {CACHE_RATIO:.0f} ×)"
        )
    return 0 if float(found["ratio"]) >= CACHE_RATIO else 1


def _generate(name: str, rounds: int) -> dict[str, Any]:
    """Both ways compute the last position's logits only and choose the same tokens; they alternate."""
    torch.manual_seed(0)
    model = create_model(name).eval()
    assert isinstance(model, Transformer)
    prompt = torch.randint(0, model.vocab_size, (PROMPT,)).tolist()
    cached_seconds, full_seconds = [], []
    for _ in range(rounds):
        cached, took = _with_cache(model, prompt)
        cached_seconds.append(took)
        full, took = _without_cache(model, prompt)
        full_seconds.append(took)
        assert cached == full, "the cache changed the text"
    count = TOTAL - PROMPT - 1
    ratios = [slow / fast for slow, fast in zip(full_seconds, cached_seconds, strict=True)]
    return {
        "model": name, "rounds": rounds, "threads": torch.get_num_threads(),
        "tokens_per_second_with_cache": count / statistics.median(cached_seconds),
        "tokens_per_second_without": count / statistics.median(full_seconds),
        "ratio": statistics.median(ratios), "lowest_ratio": min(ratios),
    }  # fmt: skip


@torch.inference_mode()
def _with_cache(model: Transformer, prompt: list[int]) -> tuple[list[int], float]:
    """The clock starts after the prompt and the first token, as it does without a cache."""
    stream = generate_tokens(model, [prompt], Sampling(temperature=0))
    tokens = [next(stream)[0]]
    started = time.perf_counter()
    tokens += [chosen[0] for chosen in islice(stream, TOTAL - PROMPT - 1)]
    return tokens, time.perf_counter() - started


@torch.inference_mode()
def _without_cache(model: Transformer, prompt: list[int]) -> tuple[list[int], float]:
    def following(ids: list[int]) -> int:
        return int(model.forward_head(model.forward_features(torch.tensor([ids]))[:, -1]).argmax())

    ids = [*prompt, following(prompt)]
    started = time.perf_counter()
    while len(ids) < TOTAL:
        ids.append(following(ids))
    return ids[PROMPT:], time.perf_counter() - started


def parts(args: argparse.Namespace) -> int:
    models = {name: create_model(name).eval() for name in args.models}
    batches = {name: torch.randn(args.batch, *model.input_size) for name, model in models.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for index in range(args.rounds + 1):
        for name, model in models.items():
            found = _milliseconds(model, batches[name])
            if index:  # round 0 is the warm-up
                rounds[name].append(found)
    for name, passes in rounds.items():
        medians = {part: statistics.median(one[part] for one in passes) for part in passes[0]}
        print(f"{name}, batch {args.batch}: " + ", ".join(f"{part} {time:.0f} ms" for part, time in medians.items()))
    return 0


def _milliseconds(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Products are those of linear layers and convolutions; attention is PyTorch's fused call."""
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
        model(x)
    found = {"products": 0.0, "attention": 0.0, "the rest": 0.0}
    for event in seen.key_averages():
        name = event.key.split("::")[-1]
        kind = "products" if name in PRODUCTS else "attention" if "scaled_dot_product" in name else "the rest"
        found[kind] += event.self_cpu_time_total / 1000
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    checks: dict[str, Callable[[argparse.Namespace], int]] = {
        "construction": construction, "compile": compile_time, "generation": generation, "parts": parts,
    }  # fmt: skip
    for name, check in checks.items():
        command = commands.add_parser(name)
        command.set_defaults(check=check)
        command.add_argument("--rounds", type=int, default=7)
        command.add_argument("--threads", type=int)
        command.add_argument("--json", action="store_true")
        if name == "construction":
            command.add_argument("--out", type=Path, help="write result.json there")
        elif name == "compile":
            command.add_argument("--families", nargs="+", choices=list(COMPILED), default=list(COMPILED))
            command.add_argument("--whole", action="store_true", help="also torch.compile of the whole model (slow)")
            command.add_argument("--training", action="store_true")
        elif name == "generation":
            command.add_argument("--model", default="steps_transformer_30m")
        else:
            command.add_argument("models", nargs="*", default=PROFILED)
            command.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    return int(args.check(args))


if __name__ == "__main__":
    sys.exit(main())
