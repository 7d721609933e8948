"""The demo: deep networks of equal depth, parameters and MACs, trained side by side on data that needs no download.

Everything here was chosen on seeds 0 and 1 and confirmed once on seeds 5 to 9; docs/demo.md lists all that was tried. Each network is an
ordinary run of the one training loop in a process of its own with one thread, so that its numbers do not depend on how many cores there
are, and a busy machine makes it slower but not slow.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.errors import RunFailed
from stepsnet.report import svg
from stepsnet.report.run import early_line
from stepsnet.runs.folder import GAMMA, METRICS, read_lines

if TYPE_CHECKING:
    from stepsnet.train.config import TrainConfig

ITERS = 400
PROCESSES = 2
"""At a time: a third would need more than the 2 GB the demo may have."""


@dataclass(frozen=True)
class Network:
    """One of the three: its key in JSON and name of its run folder, what people call it, and what makes it."""

    key: str
    label: str
    plan: str
    join: str
    color: str


STEPS_PLAN = "8x12, 12x6, 18x6, 22x6, 34x6, 44x6, 64x6"
NETWORKS = (
    Network("residual", "plain residual network", "32x48", "plain", svg.RESIDUAL),
    Network("steps", "StepsNet (Eq. 5)", STEPS_PLAN, "plain", svg.STEPS),
    Network("matched", "StepsNet, matched joins", STEPS_PLAN, "matched", svg.MATCHED),
)


@dataclass(frozen=True)
class Outcome:
    """What a network cost and what came of it. γ is the mean over depth, on validation samples."""

    key: str
    label: str
    plan: str
    join: str
    blocks: int
    params: int
    macs: int
    train_loss: float
    """Mean over the last 20 steps."""
    valid: dict[str, float]
    gamma_start: float
    gamma_early: float
    gamma_late: float
    seconds: float
    """All of its run, evaluation included."""


@dataclass(frozen=True)
class Demo:
    """All outcomes under one seed."""

    seed: int
    iters: int
    seconds: float
    networks: list[Outcome]

    def ranking(self) -> list[str]:
        """Keys of the networks, best validation accuracy first; where two are level, the lower training loss."""
        return [outcome.key for outcome in sorted(self.networks, key=lambda outcome: (-outcome.valid["top1"], outcome.train_loss))]


def config_of(network: Network, seed: int, out: Path, iters: int = ITERS) -> TrainConfig:
    """The recipe, the same for all networks: a DeiT of 2×2 patches on scikit-learn's 8×8 digits."""
    # Here and below: torch is imported by the processes that train, not by the one that watches them.
    from stepsnet.data.config import DataConfig
    from stepsnet.data.images.augment import AugmentConfig
    from stepsnet.train.config import CheckpointConfig, EvalConfig, OptimConfig, ScheduleConfig, TrainConfig

    width = int(network.plan.rpartition(",")[2].partition("x")[0])
    return TrainConfig(
        recipe="demo",
        task="classification",
        model="deit_tiny",
        plan=network.plan,
        join=network.join,
        model_args={"embed_dim": width, "patch_size": 2},
        seed=seed,
        iters=iters,
        batch_size=32,
        lr=2e-3,
        out=str(out / network.key),
        device="cpu",
        data=DataConfig(kind="digits", img_size=8, crop_pct=1.0),
        augment=AugmentConfig(),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=iters // 10, end=0.1),
        eval=EvalConfig(every=max(1, iters // 10), batch_size=64),
        checkpoint=CheckpointConfig(every=0),
    )


def run_demo(
    seed: int, out: Path, watch: Callable[[Network, Mapping[str, Any]], None], *,
    networks: Sequence[Network] = NETWORKS, iters: int = ITERS,
) -> Demo:
    """Train all networks into folders below `out`. `watch` is told of every step of every network, a little after it was made."""
    started = time.perf_counter()
    seen = dict.fromkeys(networks, 0)
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    with ProcessPoolExecutor(min(PROCESSES, os.cpu_count() or 1), mp_context=context) as pool:
        futures: list[Future[Outcome]] = [pool.submit(train_network, network, seed, out, iters) for network in networks]
        try:
            pending: set[Future[Outcome]] = set(futures)
            while pending:
                done, pending = wait(pending, timeout=0.3)
                for network in networks:
                    steps = read_lines(out / network.key / METRICS)
                    for line in steps[seen[network] :]:
                        watch(network, line)
                    seen[network] = len(steps)
                for future in done:
                    future.result()  # what went wrong in one process ends the demo here
        except BaseException as error:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # the pool, finding itself broken, gives up what waits, and leaving it waits for its processes
            if isinstance(error, BrokenProcessPool):
                raise RunFailed("One of the training processes was killed from outside, perhaps for lack of memory.") from error
            raise
    demo = Demo(seed, iters, time.perf_counter() - started, [future.result() for future in futures])
    (out / "demo.json").write_text(json.dumps(asdict(demo), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return demo


def train_network(network: Network, seed: int, out: Path, iters: int = ITERS) -> Outcome:
    """One run with its report, in a process of its own."""
    import torch

    from stepsnet.analysis import GammaRecorder
    from stepsnet.report.run import run_report
    from stepsnet.train.build import preview
    from stepsnet.train.trainer import train

    torch.set_num_threads(1)
    started = time.perf_counter()
    config = config_of(network, seed, out, iters)
    result = train(config, [GammaRecorder(every=max(1, iters // 10))])
    if not result.finished:
        raise KeyboardInterrupt
    run_report(result.out)
    cost = preview(config)["model"]
    losses = [line["loss"] for line in read_lines(result.out / METRICS)][-20:]
    gammas = read_lines(result.out / GAMMA)
    return Outcome(
        network.key, network.label, network.plan, network.join, cost["blocks"], cost["params"], cost["macs"],
        sum(losses) / len(losses), result.metrics, _mean(gammas[0]), _mean(early_line(gammas)), _mean(gammas[-1]),
        time.perf_counter() - started,
    )


def _mean(line: Mapping[str, Any]) -> float:
    return sum(line["gamma"]) / len(line["gamma"])
