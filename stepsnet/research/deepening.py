"""Does deepen help? A small Llama is trained on books, then continued at equal compute with and without new blocks.

    python -m stepsnet.research.deepening --data FOLDER [--out runs/deepening] [--quick]

FOLDER has the Gutenberg files (see `load_gutenberg`). For each seed a byte-level model of 64x4 is trained for 500
steps. It is then continued twice from the same weights: as it is ("plain"), and after `deepen(model, "32x4",
at="every:1")` ("deepened"). Everything is trained, with a new optimiser, the same schedule and the same order of data.
The deepened model costs more per step, so it makes fewer steps: both spend the same MACs.

The rule was fixed before the first run. Depth helped if the deepened model's validation loss is lower in all three
seeds, it hurt if it is higher in all three; otherwise the result is inconclusive.

Each part of each seed is written to --out when it ends and is not run again; the same command continues. `--quick` is a
run of seconds that shows that everything works, with no meaning for the question.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from stepsnet.data.config import DataConfig
from stepsnet.data.text.corpora import load_gutenberg
from stepsnet.data.text.windows import TextStore
from stepsnet.errors import UsageError
from stepsnet.files import read_json, replace_file, write_json
from stepsnet.optional import require
from stepsnet.surgery import deepen, surgery_report

NEW, AT = "32x4", "every:1"
SEEDS = (0, 1, 2)
ARMS = ("plain", "deepened")


@dataclass(frozen=True)
class Plan:
    """What is trained and for how long; one object, so that results of another plan are recognised."""

    first_steps: int = 500
    more_steps: int = 300
    """Of the plain model. The deepened one makes as many as cost the same."""
    batch: int = 16
    length: int = 128
    peak: float = 3e-3
    warm_up: int = 40
    windows: int = 400
    """Validation windows, evenly spread."""
    new: str = NEW
    at: str = AT


QUICK = Plan(first_steps=6, more_steps=4, batch=2, length=16, warm_up=2, windows=4)


def run(
    texts: tuple[TextStore, TextStore], out: Path, plan: Plan, say: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:
    """Train what is not in `out` yet and return the result, which is also written there as result.json."""
    out.mkdir(parents=True, exist_ok=True)
    known = read_json(out / "cells.json")
    if known.setdefault("plan", asdict(plan)) != asdict(plan):
        raise UsageError(f"{out} has results of another plan ({known['plan']}); give another --out")
    for seed in SEEDS:
        first = out / f"first-s{seed}.safetensors"
        if not first.is_file():
            model = make_model(seed, plan)
            cell = train(model, texts, plan, plan.first_steps, seed)
            replace_file(first, save({key: value.clone() for key, value in model.state_dict().items()}))
            write_json(out / "cells.json", known := {**known, f"first-s{seed}": cell})
            say(f"seed {seed}: first training {cell['loss']:.4f} nats per byte")
        for arm in ARMS:
            key = f"{arm}-s{seed}"
            if key in known:
                continue
            model = make_model(seed, plan)
            model.load_state_dict(load_file(first))
            steps = plan.more_steps
            if arm == "deepened":
                deepen(model, plan.new, at=plan.at, example=torch.zeros(1, plan.length, dtype=torch.long))
                report = surgery_report(model)
                steps = round(steps * report.macs_before / report.macs_after)
            cell = train(model, texts, plan, steps, 1000 + seed)
            write_json(out / "cells.json", known := {**known, key: cell})
            say(f"seed {seed}: {arm} {cell['loss']:.4f} after {steps} more steps")
    result = judge(known)
    write_json(out / "result.json", result)
    return result


def make_model(seed: int, plan: Plan) -> Any:
    library = require("transformers", extra="transformers")
    torch.manual_seed(seed)
    config = library.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=plan.length, tie_word_embeddings=True, use_cache=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return library.LlamaForCausalLM(config)


def train(model: nn.Module, texts: tuple[TextStore, TextStore], plan: Plan, steps: int, seed: int) -> dict[str, float]:
    """Train with AdamW: linear warm-up, then linear to zero. Returns validation loss, steps and processor seconds."""
    learning, validation = texts
    optimizer = torch.optim.AdamW(model.parameters(), plan.peak, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / plan.warm_up, (steps - step) / max(1, steps - plan.warm_up))
    )
    generator = torch.Generator().manual_seed(seed)
    began = time.process_time()
    model.train()
    for _ in range(steps):
        starts = torch.randint(len(learning) - plan.length - 1, (plan.batch,), generator=generator)
        loss = loss_of(model, window_batch(learning, starts.tolist(), plan.length))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    took = time.process_time() - began
    return {"loss": evaluate(model, validation, plan), "steps": steps, "seconds": took}


@torch.no_grad()
def evaluate(model: nn.Module, text: TextStore, plan: Plan) -> float:
    """Nats per byte over windows spread evenly over the text."""
    model.eval()
    stride = (len(text) - plan.length - 1) // plan.windows
    starts = [index * stride for index in range(plan.windows)]
    batches = [starts[i : i + plan.batch] for i in range(0, len(starts), plan.batch)]
    losses = [len(batch) * loss_of(model, window_batch(text, batch, plan.length)).item() for batch in batches]
    return sum(losses) / len(starts)


def window_batch(text: TextStore, starts: list[int], length: int) -> Tensor:
    """(B, length + 1) bytes."""
    return torch.stack([torch.from_numpy(text.read(start, start + length + 1).astype("int64")) for start in starts])


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def judge(cells: dict[str, Any]) -> dict[str, Any]:
    """The differences by seed, and the outcome by the rule."""
    differences = [cells[f"deepened-s{seed}"]["loss"] - cells[f"plain-s{seed}"]["loss"] for seed in SEEDS]
    outcome = "depth helped" if max(differences) < 0 else "depth hurt" if min(differences) > 0 else "inconclusive"
    return {**cells, "differences": differences, "mean": sum(differences) / len(differences), "outcome": outcome}


def table(result: dict[str, Any]) -> str:
    """The result as a table in Markdown."""
    lines = ["| seed | first training | plain, continued | deepened, continued | difference |", "|---|---|---|---|---|"]
    for seed, difference in zip(SEEDS, result["differences"], strict=True):
        losses = [result[f"{part}-s{seed}"]["loss"] for part in ("first", *ARMS)]
        lines.append(f"| {seed} | {losses[0]:.4f} | {losses[1]:.4f} | {losses[2]:.4f} | {difference:+.4f} |")
    steps = [result[f"{arm}-s0"]["steps"] for arm in ARMS]
    spent = sum(cell["seconds"] for key, cell in result.items() if "-s" in key) / 60
    facts = f"{steps[0]} and {steps[1]} more steps at equal MACs; {spent:.1f} minutes of one core in all."
    outcome = f"Outcome by the rule: {result['outcome']} (mean difference {result['mean']:+.4f})."
    return "\n".join([*lines, "", f"Validation loss in nats per byte; {facts}", outcome])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stepsnet.research.deepening", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", required=True, help="the folder with the Gutenberg files")
    parser.add_argument("--out", type=Path, default=Path("runs/deepening"), help="results (default: runs/deepening)")
    parser.add_argument("--quick", action="store_true", help="a few steps")
    parser.add_argument("--json", action="store_true", help="print one object")
    args = parser.parse_args()
    text = load_gutenberg(DataConfig(kind="gutenberg", root=args.data))
    plan = QUICK if args.quick else Plan()
    result = run((text.train, text.valid), args.out, plan, lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(result, indent=2) if args.json else table(result))


if __name__ == "__main__":
    main()
