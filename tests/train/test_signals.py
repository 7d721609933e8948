"""Ctrl-C, SIGTERM and processes that die: all processes exit in time, with a message."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepsnet.runs.folder import METRICS, read_lines
from stepsnet.train import distributed
from stepsnet.train.checkpoint import latest
from stepsnet.train.distributed import stop_on_signals
from stepsnet.train.trainer import train
from tests.train.synthetic import NoisyTask, fingerprint, free_port, in_processes, small_config


class Forked:
    """A process that does `work` and exits with code 0; the test sends signals to it."""

    def __init__(self, work: Callable[[], object]) -> None:
        def alone() -> None:
            torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork, and waiting for them never ends
            work()

        self.process = multiprocessing.get_context("fork").Process(target=alone)
        self.process.start()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def exit_code(self, within: float) -> int:
        """The exit code; minus the signal if a signal ended it."""
        self.process.join(within)
        code = self.process.exitcode
        self.process.kill()
        assert code is not None, f"the process was still there after {within} s"
        return code


def wait_for(happened: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


class SleepyTask(NoisyTask):
    """From its third batch on, every loss takes a minute."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker, self.calls = marker, 0

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        self.calls += 1
        if self.calls > 2:
            self.marker.touch()
            time.sleep(60)
        return super().loss(model, batch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_signal_saves_and_exits(number: int, workers: int, tmp_path: Path) -> None:
    """The signal also reaches the loader's workers, as from a terminal and from some clusters."""
    out = tmp_path / "run"

    def work() -> None:
        os.setpgid(0, 0)
        result = train(small_config(out, "iters=100000", f"workers={workers}"), task=NoisyTask())
        assert not result.finished
        assert result.signal == number

    process = Forked(work)
    wait_for(lambda: len(read_lines(out / METRICS)) > 3)
    assert process.process.pid is not None
    os.killpg(process.process.pid, number)
    assert process.exit_code(within=50) == 0
    newest = latest(out / "checkpoints")
    assert newest is not None
    assert newest.name == f"step-{len(read_lines(out / METRICS)):08d}"


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = Forked(lambda: train(small_config(tmp_path / "run"), task=SleepyTask(tmp_path / "asleep")))
    wait_for((tmp_path / "asleep").exists)
    process.signal(signal.SIGINT)
    time.sleep(0.5)
    process.signal(signal.SIGINT)
    assert process.exit_code(within=50) == -signal.SIGINT
    assert "Press Ctrl-C again to exit at once" in capfd.readouterr().err


def test_one_keystroke_that_arrives_twice_counts_once() -> None:
    """As under torchrun, which forwards the Ctrl-C that the terminal has already sent."""

    def work() -> None:
        with stop_on_signals(launched=True) as request:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert request.signal == signal.SIGINT
            time.sleep(distributed.SAME_KEYSTROKE_SECONDS + 0.2)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit("still here after the second keystroke")

    assert Forked(work).exit_code(within=50) == 128 + signal.SIGINT


def test_a_process_stuck_in_torch_after_sigterm_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "GRACE_SECONDS", 0.5)

    def work() -> None:
        with stop_on_signals(launched=True):
            (tmp_path / "busy").touch()
            large = torch.ones(12_000, 12_000)
            torch.mm(large, large)  # half a minute during which no Python handler runs

    process = Forked(work)
    wait_for((tmp_path / "busy").exists)
    time.sleep(1)
    process.signal(signal.SIGTERM)
    assert process.exit_code(within=50) == 128 + signal.SIGTERM


def test_the_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_on_signals(launched=True):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class DyingTask(NoisyTask):
    """On rank 1, the first process dies at its fourth loss."""

    def __init__(self, end: Callable[[], object]) -> None:
        super().__init__()
        self.end, self.calls = end, 0

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        self.calls += 1
        if self.calls == 4 and os.environ["RANK"] == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            self.end()
        return super().loss(model, batch)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def break_down() -> None:
    say(f"broke down at {time.monotonic()}")
    raise ArithmeticError("a bug on one process")


def launched_twice(work: Callable[[], object]) -> list[Forked]:
    """Two processes with the environment that torchrun gives them."""
    port = free_port()

    def member(rank: int) -> Callable[[], None]:
        def launched() -> None:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            work()

        return launched

    return [Forked(member(rank)) for rank in (0, 1)]


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("end", [kill_myself, break_down])
def test_when_one_process_ends_all_end(
    mode: str, end: Callable[[], object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path / "run", f"parallel={mode}")
    processes = launched_twice(lambda: train(config, task=DyingTask(end)))
    codes = [process.exit_code(within=50) for process in processes]
    assert 0 not in codes
    said = capfd.readouterr().err
    assert ("rank 1 of 2 failed: ArithmeticError: a bug on one process" in said) == (end is break_down)
    assert "rank 0 of 2 failed: " in said


def test_torchrun_names_the_rank_and_resumes_by_itself(tmp_path: Path) -> None:
    """Rank 1 is killed once and torchrun restarts both. The result equals that of an uninterrupted run."""
    found = torchrun(tmp_path / "killed", "kill", restarts=1)
    assert found.returncode == 0, found.stderr
    assert "exitcode: -9" in found.stderr
    assert "local_rank: 1" in found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("attempt")]
    assert sorted(lines) == ["attempt 1 rank 0 step 12", "attempt 1 rank 1 step 12"]
    assert found.stdout.count("threads of gloo at exit: 0") == 2  # one that lives on can abort the process
    in_processes(
        2,
        lambda: train(small_config(tmp_path / "uninterrupted", "parallel=ddp", "checkpoint.every=2"), task=NoisyTask()),
    )
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "uninterrupted")


def test_the_wrapped_model_is_gone_before_its_process_group_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round, PyTorch can wait for ever (`join_processes`)."""
    destroy = dist.destroy_process_group

    def counted() -> None:
        wrapped = [found for found in gc.get_objects() if type(found) is nn.parallel.DistributedDataParallel]
        (tmp_path / f"wrapped-{dist.get_rank()}").write_text(str(len(wrapped)))
        destroy()

    monkeypatch.setattr(dist, "destroy_process_group", counted)
    processes = launched_twice(lambda: train(small_config(tmp_path / "run", "parallel=ddp"), task=NoisyTask()))
    assert [process.exit_code(within=50) for process in processes] == [0, 0]
    assert [(tmp_path / f"wrapped-{rank}").read_text() for rank in (0, 1)] == ["0", "0"]


def test_torchrun_ends_all_when_one_raises(tmp_path: Path) -> None:
    found = torchrun(tmp_path / "broken", "raise", restarts=0)
    assert found.returncode != 0
    (broke,) = [
        float(line.removeprefix("broke down at "))
        for line in found.stdout.splitlines()
        if line.startswith("broke down at ")
    ]
    assert time.monotonic() - broke < 30
    assert "rank 1 of 2 failed: ArithmeticError: a bug on one process" in found.stderr


def gloo_threads() -> int:
    return sum("gloo" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))


def say(line: str) -> None:
    """Print a line in one write; print() makes several, which mix with those of the other process in one pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def torchrun(out: Path, end: str, restarts: int) -> subprocess.CompletedProcess[str]:
    words = ["--nproc-per-node=2", f"--max-restarts={restarts}", f"--master-port={free_port()}"]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "-m", "tests.train.test_signals", str(out), end],
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
        cwd=Path(__file__).parents[2],
    )


if __name__ == "__main__":  # what torchrun starts
    torch.set_num_threads(1)
    atexit.register(lambda: say(f"threads of gloo at exit: {gloo_threads()}"))
    task = DyingTask(kill_myself if sys.argv[2] == "kill" else break_down)
    result = train(small_config(Path(sys.argv[1]), "parallel=ddp", "checkpoint.every=2"), task=task)
    say(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} rank {os.environ['RANK']} step {result.step}")
