"""How long it takes to make the deepest networks, to write them and to read them back, in turns, medians over the rounds.

    python benchmarks/construction.py [--rounds 7] [--out FOLDER] [--json]

"on meta" makes the structure alone, as counting and loading do. Reading is `stepsnet.load_model`, from a file that is in the cache.
The 482-layer network is expected to be made in under 1.5 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stepsnet.models import create_model, load_model, save_model
from stepsnet.report.bench_tables import machine_line, tables_of
from stepsnet.research.bench.interleave import interleave, threads
from stepsnet.research.bench.machine import describe_machine
from stepsnet.research.bench.summary import Spread

MODELS = ("deit_deep_d96", "steps_deit_deep_d96", "steps_swin_deep_d96")
WANTED = 1.5


def measure(name: str, rounds: int, folder: Path) -> dict[str, Any]:
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
    cost = model.closed_form()
    times = {what: asdict(Spread.of(found)) for what, found in zip(passes, seconds, strict=True)}
    return {"model": name, "blocks": cost.blocks, "layers": cost.layers, "params": cost.params, "bytes": file.stat().st_size, **times}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="write result.json there")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    with threads(args.threads), tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, args.rounds, Path(folder)) for name in MODELS]
        document = {
            "command": f"python benchmarks/construction.py --rounds {args.rounds}", "benchmark": "construction",
            "machine": describe_machine(), "rows": rows,
        }  # fmt: skip
    text = json.dumps(document, indent=1)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "result.json").write_text(text + "\n", encoding="utf-8")
    print(text if args.json else "\n".join([*(table.markdown() for table in tables_of(document)), machine_line(document)]))
    return 0 if all(row["make"]["median"] < WANTED for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
