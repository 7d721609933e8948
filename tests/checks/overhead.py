"""The training loop's own share of a run's time, and that of recording γ.

    python -m tests.checks.overhead loop [--steps 12] [--model deit_tiny] [--batch-size 32] [--img-size 224]
    python -m tests.checks.overhead gamma [--steps 300] [--every 50] [--model test_steps_deit] [--plan "16x24, 32x12"]

loop: a run on noise images with clipping, a weight average, stochastic depth, metrics on disk, Mixup and a loader
worker. Everything that is not forward, backward, optimiser step or data wait is overhead, plus 1/500 of a checkpoint
per step. Target: under 3 %. gamma: the recorder's passes through the model, and apart from them the figure it draws at
the end. Target: under 2 % for the passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from stepsnet.analysis import GammaRecorder
from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.images.datasets import ArraySource, LabelledImages
from stepsnet.tasks.classification import Classification
from stepsnet.train.callbacks import Callback
from stepsnet.train.config import CheckpointConfig, EvalConfig, OptimConfig, TrainConfig
from stepsnet.train.loader import TrainingBatches
from stepsnet.train.trainer import Trainer, train

LOOP_TARGET, GAMMA_TARGET = 0.03, 0.02
WARM_UP = 2


class Clock:
    """Adds up the seconds spent in named functions."""

    def __init__(self, *, running: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self.running = running

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with its time added to `name` while the clock runs."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if self.running:
                    self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return wrapper


class Stopwatch(Callback):
    """Starts the clock after the warm-up steps, and times the checkpoint after the last step."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        if step == WARM_UP:
            self.clock.running, self.began = True, time.perf_counter()
        if step == trainer.total_steps:
            self.clock.running, self.whole = False, time.perf_counter() - self.began

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        self.saving = time.perf_counter()

    def on_end(self, trainer: Trainer) -> None:
        self.checkpoint = time.perf_counter() - self.saving  # includes the final weights


@contextmanager
def wrapped(clock: Clock) -> Iterator[None]:
    """Time forward, backward, optimiser step and data wait."""
    with (
        patch.object(Classification, "loss", clock.timed("forward", Classification.loss)),
        patch.object(torch.Tensor, "backward", clock.timed("backward", torch.Tensor.backward)),
        patch.object(torch.optim.AdamW, "step", clock.timed("optimiser step", torch.optim.AdamW.step)),
        patch.object(TrainingBatches, "__next__", clock.timed("data wait", TrainingBatches.__next__)),
    ):
        yield


def noise(count: int, size: int) -> ArraySource:
    generator = np.random.default_rng(0)
    return ArraySource(generator.integers(0, 256, (count, size, size, 3), dtype=np.uint8), np.arange(count) % 10)


def loop(args: argparse.Namespace) -> int:
    images = LabelledImages(
        name="noise",
        classes=tuple("0123456789"),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        train=noise(4 * args.batch_size, args.img_size),
        valid=noise(args.batch_size, args.img_size),
    )
    with tempfile.TemporaryDirectory() as folder:
        data, augment = (
            DataConfig(kind="digits", img_size=args.img_size),
            AugmentConfig(flip=0.5, mixup=0.8, cutmix=1.0),
        )
        config = TrainConfig(
            task="classification",
            model=args.model,
            iters=args.steps,
            batch_size=args.batch_size,
            lr=1e-3,
            workers=1,
            drop_path=0.1,
            out=str(Path(folder) / "run"),
            data=data,
            augment=augment,
            eval=EvalConfig(every=0),
            optim=OptimConfig(clip=1.0, ema=0.999),
            checkpoint=CheckpointConfig(every=0),
        )
        clock = Clock()
        stopwatch = Stopwatch(clock)
        with wrapped(clock):
            train(config, [stopwatch], task=Classification(images, data, augment, seed=0, smoothing=0.1))
    steps = args.steps - WARM_UP
    parts = {name: seconds / steps for name, seconds in clock.seconds.items()}
    parts["the loop itself"] = stopwatch.whole / steps - sum(parts.values())
    parts["checkpoints"] = stopwatch.checkpoint / CheckpointConfig().every
    step = sum(parts.values())
    for name, seconds in parts.items():
        print(f"{name:<16}{1000 * seconds:9.1f} ms per step  {seconds / step:7.2%}")
    share = (parts["the loop itself"] + parts["checkpoints"]) / step
    print(f"overhead at {args.model}, batch {args.batch_size}: {share:.2%} (target under {LOOP_TARGET:.0%})")
    return 0 if share < LOOP_TARGET else 1


def gamma(args: argparse.Namespace) -> int:
    clock = Clock(running=True)
    recorder = GammaRecorder(every=args.every)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            task="classification",
            model=args.model,
            plan=args.plan,
            iters=args.steps,
            batch_size=32,
            lr=1e-3,
            workers=0,
            out=str(Path(folder) / "run"),
            data=DataConfig(kind="digits", img_size=32, crop_pct=1.0),
            eval=EvalConfig(every=0),
            checkpoint=CheckpointConfig(every=0),
        )
        for name, part in {"on_start": "passes", "on_step": "passes", "on_end": "figure"}.items():
            patch.object(recorder, name, clock.timed(part, getattr(recorder, name))).start()
        began = time.perf_counter()
        train(config, [recorder])
        whole = time.perf_counter() - began
    share = clock.seconds["passes"] / whole
    run = f"γ every {args.every} of {args.steps} steps, {args.model} with {args.plan}, {whole:.1f} s"
    print(
        f"{run}: {share:.2%} (target under {GAMMA_TARGET:.0%}); the figure at the end {clock.seconds['figure']:.2f} s"
    )
    return 0 if share < GAMMA_TARGET else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_loop, of_gamma = commands.add_parser("loop"), commands.add_parser("gamma")
    of_loop.set_defaults(check=loop)
    of_loop.add_argument("--steps", type=int, default=12)
    of_loop.add_argument("--model", default="deit_tiny")
    of_loop.add_argument("--batch-size", type=int, default=32)
    of_loop.add_argument("--img-size", type=int, default=224)
    of_gamma.set_defaults(check=gamma)
    of_gamma.add_argument("--steps", type=int, default=300)
    of_gamma.add_argument("--every", type=int, default=50)
    of_gamma.add_argument("--model", default="test_steps_deit")
    of_gamma.add_argument("--plan", default="16x24, 22x12, 32x12")
    args = parser.parse_args()
    return int(args.check(args))


if __name__ == "__main__":
    sys.exit(main())
