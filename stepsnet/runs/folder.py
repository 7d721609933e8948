"""The folder of a run: everything that is known about it, and its name.

    config.json  environment.json      what was asked for, and where it ran
    metrics.jsonl  eval.jsonl          one object a step, each step once, also after a kill and a resume
    checkpoints/                       what a resume starts from
    weights.safetensors (weights_ema.safetensors)  result.json      once it is finished
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import stepsnet
from stepsnet.errors import UsageError
from stepsnet.files import TEMPORARY, replace_file
from stepsnet.train.config import TrainConfig
from stepsnet.train.durable import full_disk_in_words
from stepsnet.train.typed import from_dict, to_dict

CONFIG, ENVIRONMENT, METRICS, EVALUATIONS, RESULT = "config.json", "environment.json", "metrics.jsonl", "eval.jsonl", "result.json"
LONGEST_LINE = 1 << 16
WEIGHTS, WEIGHTS_EMA, CHECKPOINTS = "weights.safetensors", "weights_ema.safetensors", "checkpoints"


def is_run(folder: Path) -> bool:
    """Whether a run was started in `folder`."""
    return (folder / CONFIG).is_file()


def is_finished(folder: Path) -> bool:
    """Whether that run has come to its end."""
    return (folder / RESULT).is_file()


def new_folder(config: TrainConfig) -> Path:
    """The folder for a new run, checked to be free: `out`, or the next free runs/<recipe>-<model>-<number>."""
    if not config.out:
        stem = f"{config.recipe or config.task}-{config.model}"
        return next(folder for number in range(1, sys.maxsize) if not (folder := Path("runs") / f"{stem}-{number}").exists())
    folder = Path(config.out)
    if is_finished(folder):
        raise UsageError(f"{folder} holds a finished run, which is not overwritten: give another out. `stepsnet eval {folder}` shows it.")
    if is_run(folder):
        raise UsageError(f"{folder} holds an unfinished run, which is not overwritten; go on with it by `stepsnet resume {folder}`.")
    if folder.exists() and (not folder.is_dir() or any(not entry.name.startswith(TEMPORARY) for entry in folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder, and holds no run either; give another out.")
    return folder


def create(folder: Path, config: TrainConfig) -> None:
    """Make `folder` a run's. From the moment its configuration is there, it can be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ENVIRONMENT, environment(config))
    write_json(folder / CONFIG, to_dict(config))


def read_config(folder: Path) -> TrainConfig:
    """The configuration of the run in `folder`, or a sentence why there is none."""
    if not is_run(folder):
        raise UsageError(f"There is no run in {folder}: it has no {CONFIG}.")
    try:
        values = json.loads((folder / CONFIG).read_bytes())
    except ValueError as error:
        raise UsageError(f"{folder / CONFIG} is not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise UsageError(f"{folder / CONFIG} is not a configuration, but {type(values).__name__}.")
    try:
        return from_dict(TrainConfig, values)
    except UsageError as error:
        raise UsageError(f"{folder / CONFIG} is no configuration that this stepsnet reads: {error}") from error


def read_result(folder: Path) -> dict[str, Any]:
    """How the finished run in `folder` ended: its last step and what was found there."""
    return json.loads((folder / RESULT).read_bytes())


def write_json(path: Path, value: Any) -> None:
    """Write JSON, durably and in one instant."""
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


@contextmanager
def only_one_trainer(folder: Path) -> Iterator[None]:
    """Keep a second process out of the run for as long as the body runs; the lock goes with the process, however that ends."""
    with (folder / f"{TEMPORARY}lock").open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # this kind is not inherited by loader workers, which may live on for seconds
        except OSError as error:
            raise UsageError(f"{folder} is being trained by another process.") from error
        yield


def is_being_trained(folder: Path) -> bool:
    """Whether some process is at work in `folder`."""
    lock = folder / f"{TEMPORARY}lock"
    if not lock.exists():
        return False
    with lock.open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class StepLines:
    """A file of JSON lines, each with a growing "step": one that is already there is not written again."""

    def __init__(self, path: Path, *, keep_until: int) -> None:
        self.path = path
        self.last_step = truncate_lines(path, keep_until)
        self._file = path.open("ab", buffering=0)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line, seen by other processes at once. Numbers that JSON does not have become null."""
        if line["step"] <= self.last_step:
            return
        content = (json.dumps(finite(line)) + "\n").encode()
        with full_disk_in_words(self.path, len(content), "What was saved before is intact."):
            while content:  # a write to a disk that is nearly full may be a part of it
                content = content[self._file.write(content) :]
        self.last_step = line["step"]

    def sync(self) -> None:
        """Wait until everything has reached the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, with None for the numbers that JSON does not have."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()}


def truncate_lines(path: Path, step: int) -> int:
    """Cut a file of JSON lines after the last whole line of at most `step`; the step that is last then, or −1."""
    last, end = -1, 0
    if not path.exists():
        return last
    with path.open("r+b") as file:
        for raw in file:
            try:
                found = json.loads(raw)["step"] if raw.endswith(b"\n") else step + 1
            except (ValueError, KeyError, TypeError):
                break
            if found > step:
                break
            last, end = found, end + len(raw)
        file.truncate(end)
    return last


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file of JSON lines; none if there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON lines, without reading all of it; nothing if there is none."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST_LINE))
        whole = file.read().rpartition(b"\n")[0]
    return json.loads(whole.rpartition(b"\n")[2] or b"{}")


def environment(config: TrainConfig) -> dict[str, Any]:
    """What a result may depend on besides its configuration. No names of hosts or users."""
    return {
        "stepsnet": stepsnet.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "seed": config.seed,
        "command": sys.argv[1:],
    }


def _git_commit() -> str | None:
    """The commit of the package's source, if it lies in a work tree of its own; "+" stands for uncommitted changes."""
    source = Path(stepsnet.__file__).parent.parent
    if not (source / ".git").exists():
        return None
    try:
        words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        return subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
