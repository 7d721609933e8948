"""The runs of docs/results.md, "Language: Gutenberg": two at a time, one thread each, and on from where they were stopped.

    python benchmarks/gutenberg_study.py --data FOLDER --out FOLDER      train what is missing, then print the tables
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
from typing import Any

STEPS_PLANS = {12: "16x2, 24x1, 32x2, 48x2, 64x2, 90x2, 128x1", 48: "16x12, 24x6, 32x6, 48x6, 64x6, 90x6, 128x6"}
RUNS = [(48, 0), (12, 0), (12, 1), (48, 1)]  # blocks, seed
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
        # In a session of its own, so that the scheduler weighs it like any other program.
        subprocess.run([sys.executable, __file__, *arguments], check=True, start_new_session=True)
    print(" | ".join(row(out, *cell)), flush=True)


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def row(out: Path, network: str, blocks: int, seed: int) -> list[str]:
    """One line of the table of losses."""
    folder = folder_of(out, network, blocks, seed)
    result, metrics = json.loads((folder / "result.json").read_text()), read(folder, "metrics.jsonl")
    figures = [result["loss"], result["bits_per_byte"], mean(line["loss"] for line in metrics[-20:])]
    return [str(blocks), network, str(seed), *(f"{figure:.4f}" for figure in figures)]


def gamma_rows(out: Path, network: str, blocks: int, seed: int) -> Iterator[list[str]]:
    """γ along the depth, one line a step of training."""
    found = {line["step"]: line["gamma"] for line in read(folder_of(out, network, blocks, seed), "gamma.jsonl")}
    for step in GAMMA_STEPS:
        gamma = found[step]
        along = [gamma[max(round(blocks * share) - 1, 0)] for share in (0, 0.25, 0.5, 0.75, 1)]
        yield [str(blocks), network, str(seed), str(step), f"{mean(gamma):.3f}", *(f"{value:.3f}" for value in along)]


def print_tables(out: Path) -> None:
    done = [cell for cell in cells() if (folder_of(out, *cell) / "result.json").is_file()]
    losses = ["blocks", "network", "seed", "validation loss", "bits per byte", "training loss, last 20 steps"]
    gammas = ["blocks", "network", "seed", "step", "mean γ", "first block", "¼", "½", "¾", "last block"]
    all_gammas = [line for cell in done for line in gamma_rows(out, *cell)]
    for columns, rows in ((losses, [row(out, *cell) for cell in done]), (gammas, all_gammas)):
        print("\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows]), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--tables", action="store_true", help="train nothing, print what is there")
    arguments = parser.parse_args()
    if arguments.cell:
        network, blocks, seed = arguments.cell
        run_cell(network, int(blocks), int(seed), arguments.data, arguments.out)
        return
    if arguments.tables:
        print_tables(arguments.out)
        return
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda cell: start(cell, arguments.data, arguments.out), cells()))
    print_tables(arguments.out)


if __name__ == "__main__":
    main()
