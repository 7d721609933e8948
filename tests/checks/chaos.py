"""Kill a training run many times, resume it each time, and compare its end with that of an uninterrupted run.

    make chaos
    python -m tests.checks.chaos --kills 20 --iters 200

A tiny network learns digits with Mixup, stochastic depth, a weight average and, every other time, loader workers, and
saves after every step. It is killed (SIGKILL) at random times, also during its start and while it saves. At the end
weights, optimiser state and losses must equal those of the uninterrupted run. Each attempt is a fork of this process,
which has imported everything.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # which torch's optimisers import when they are made

from stepsnet.cli.console import progress
from stepsnet.files import TEMPORARY
from stepsnet.runs.folder import CHECKPOINTS, METRICS, WEIGHTS, WEIGHTS_EMA, is_run, read_lines
from stepsnet.tasks.base import Task
from stepsnet.train.build import task_of
from stepsnet.train.checkpoint import latest, read_optimizer, read_tensors
from stepsnet.train.config import TrainConfig, customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import resume, train

SETTINGS = (
    "model=test_deit",
    "plan=16x1, 32x1",
    "batch_size=16",
    "drop_path=0.1",
    "augment.mixup=0.8",
    "optim.ema=0.99",
    "checkpoint.every=1",
    "eval.every=0",
    "eval.batch_size=360",
    "device=cpu",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how often (default: 100)")
    parser.add_argument("--iters", type=int, default=1000, help="how long the run is, in steps (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the random times (default: 0)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="stepsnet-chaos-") as folder:
        return chaos(Path(folder), args.kills, args.iters, random.Random(args.seed))


def chaos(root: Path, kills: int, iters: int, times: random.Random) -> int:
    """The exit code: 0 if the killed run ends as the uninterrupted one."""
    config = customise(get_recipe("digits"), [*SETTINGS, f"iters={iters}", f"out={root / 'uninterrupted'}"])
    task, out, log = task_of(config), root / "disturbed", root / "log"
    task.prepare(task.collate([task.train[0, index] for index in range(2)]), 0)  # imports what attempts need

    began = time.monotonic()
    attempt = Attempt(lambda: train(config, task=task), log)
    while not saved_steps(root / "uninterrupted") and attempt.running():
        time.sleep(0.005)
    start = time.monotonic() - began
    if attempt.wait():
        return failed(log)
    step_time = (time.monotonic() - began - start) / iters
    print(
        f"uninterrupted: {iters} steps, each saved, {1000 * step_time:.0f} ms a step after a start of {start:.2f} s",
        flush=True,
    )

    tried = while_saving = 0
    with progress("killing", kills, "kills") as bar:
        while True:
            attempt = Attempt(one_attempt(config, task, out, workers=tried % 2), log)
            if tried < kills:  # spread the remaining kills over most of the remaining run
                rest = (iters - saved_steps(out)) * step_time / (kills - tried)
                time.sleep(times.uniform(0, start + 1.6 * rest))
                if attempt.kill():
                    tried += 1
                    while_saving += any((out / CHECKPOINTS).glob(f"{TEMPORARY}*"))
                    bar.advance()
                    continue
            broken = attempt.wait() != 0
            break
    survived = tried - broken
    same = not broken and fingerprint(root / "uninterrupted") == fingerprint(out)
    print(
        f"kills survived / tried: {survived} / {tried} "
        f"({while_saving} of them while a checkpoint was being written or deleted)"
    )
    if broken:
        return failed(log)
    print(f"weights, average, optimiser and losses equal those of the uninterrupted run: {'yes' if same else 'NO'}")
    return 0 if same and tried == kills else 1


def one_attempt(config: TrainConfig, task: Task, out: Path, *, workers: int) -> Callable[[], object]:
    """Start the run, or resume it if it was started before."""
    if is_run(out):
        return lambda: resume(out, [f"workers={workers}"], task=task)
    return lambda: train(customise(config, [f"out={out}", f"workers={workers}"]), task=task)


class Attempt:
    """A fork of this process that does `work` and ends."""

    def __init__(self, work: Callable[[], object], log: Path) -> None:
        self._exit_code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                with log.open("w") as file:
                    os.dup2(file.fileno(), 2)
                    work()
                    code = 0
            except BaseException:  # noqa: BLE001  (written to the log; a fork must not continue as its parent)
                traceback.print_exc()
            finally:
                os._exit(code)

    def running(self) -> bool:
        """Whether it has not ended."""
        if self._exit_code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code is None

    def kill(self) -> bool:
        """Kill it; False if it had already ended."""
        if not self.running():
            return False
        os.kill(self._pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """The exit code when it has ended; negative for a signal."""
        while self.running():
            time.sleep(0.005)
        assert self._exit_code is not None
        return self._exit_code


def saved_steps(out: Path) -> int:
    """The step of the latest checkpoint."""
    newest = latest(out / CHECKPOINTS)
    return int(newest.name.removeprefix("step-")) if newest else 0


def fingerprint(out: Path) -> list[object]:
    """What must be equal bit-exactly: final weights and average, optimiser state, and the loss of every step."""
    newest = latest(out / CHECKPOINTS)
    assert newest is not None
    moments = {
        f"{name}.{key}": t
        for name, entry in read_optimizer(newest / "optimizer.pt").items()
        for key, t in entry.items()
    }
    tensors = [read_tensors(out / WEIGHTS), read_tensors(out / WEIGHTS_EMA), moments]
    hashes = [
        hashlib.sha256(b"".join(group[name].numpy().tobytes() for name in sorted(group))).hexdigest()
        for group in tensors
    ]
    return [*hashes, [(line["step"], line["loss"]) for line in read_lines(out / METRICS)]]


def failed(log: Path) -> int:
    print(f"A run failed:\n{log.read_text()}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
