"""The nine runs of docs/results.md, "Language: Gutenberg": two at a time, one thread each, and on from where they were stopped.

    python benchmarks/gutenberg_study.py --data FOLDER --out FOLDER      train what is missing, then print the table
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

STEPS_PLANS = {12: "16x2, 24x1, 32x2, 48x2, 64x2, 90x2, 128x1", 48: "16x12, 24x6, 32x6, 48x6, 64x6, 90x6, 128x6"}
RUNS = [(48, 0), (12, 0), (48, 1)]  # blocks, seed
NETWORKS = ("residual", "steps", "matched")
GAMMA_STEPS = (1, 20, 100, 240)


def words(network: str, blocks: int, seed: int) -> list[str]:
    """What follows `stepsnet train gutenberg`."""
    common = ["iters=240", "schedule.warmup_iters=24", f"seed={seed}", "checkpoint.every=50"]
    if network == "residual":
        return [*common, f"plan=64x{blocks}", "model_args.embed_dim=64"]
    return [*common, f"plan={STEPS_PLANS[blocks]}", "join=matched" if network == "matched" else "join=plain"]


def cells() -> Iterator[tuple[str, int, int]]:
    for blocks, seed in RUNS:
        for network in NETWORKS:
            yield network, blocks, seed


def folder_of(out: Path, network: str, blocks: int, seed: int) -> Path:
    return out / f"{network}-{blocks}-{seed}"


def run_cell(network: str, blocks: int, seed: int, data: Path, out: Path) -> None:
    import torch

    from stepsnet.analysis import GammaRecorder
    from stepsnet.training.config import customise
    from stepsnet.training.recipes import get_recipe
    from stepsnet.training.run import resume, train
    from stepsnet.training.rundir import is_run

    torch.set_num_threads(1)
    folder = folder_of(out, network, blocks, seed)
    watchers = [GammaRecorder(always=GAMMA_STEPS)]
    if is_run(folder):
        resume(folder, callbacks=watchers)
    else:
        config = customise(get_recipe("gutenberg"), [*words(network, blocks, seed), f"data.root={data}", f"out={folder}"])
        train(config, watchers)


def start(cell: tuple[str, int, int], data: Path, out: Path) -> None:
    network, blocks, seed = cell
    if not (folder_of(out, *cell) / "result.json").is_file():
        arguments = ["--data", str(data), "--out", str(out), "--cell", network, str(blocks), str(seed)]
        subprocess.run([sys.executable, __file__, *arguments], check=True, start_new_session=True)
    print(row(out, *cell), flush=True)


def row(out: Path, network: str, blocks: int, seed: int) -> str:
    folder = folder_of(out, network, blocks, seed)
    result = json.loads((folder / "result.json").read_text())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    gamma = {line["step"]: line["gamma"] for line in map(json.loads, (folder / "gamma.jsonl").read_text().splitlines())}
    means = " ".join(f"{mean(gamma[step]):.3f}" for step in GAMMA_STEPS)
    minutes = sum(line["seconds"] for line in metrics) / 60
    train_loss = mean(line["loss"] for line in metrics[-20:])
    losses = f"valid {result['loss']:.4f} train {train_loss:.4f}"
    return f"{blocks:2} {network:9} seed {seed}: {losses} mean γ {means} last γ {gamma[240][-1]:.3f}, {minutes:.1f} min"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cell", nargs=3)
    arguments = parser.parse_args()
    if arguments.cell:
        network, blocks, seed = arguments.cell
        run_cell(network, int(blocks), int(seed), arguments.data, arguments.out)
        return
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda cell: start(cell, arguments.data, arguments.out), cells()))


if __name__ == "__main__":
    main()
