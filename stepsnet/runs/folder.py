"""The files of a run folder.

    config.json  environment.json      the configuration, and the machine and versions it ran on
    metrics.jsonl  eval.jsonl          one JSON object per step, each step once, also after a kill and a resume
    classes.json                       classification: names of the classes, normalisation of the images
    mistakes.json                      classification: confused classes, and the worst mistakes with their images
    gamma.jsonl                        the shortcut ratio γ over depth, at some steps
    trackers.json                      what Weights & Biases and MLflow call the run, if they are used
    checkpoints/                       what a resume continues from
    weights.safetensors  weights_ema.safetensors  result.json  report.html      at the end
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stepsnet
from stepsnet.errors import UsageError
from stepsnet.files import TEMPORARY, check_new_folder, explain_full_disk, finite, read_json, write_json

CONFIG, ENVIRONMENT, RESULT, REPORT = "config.json", "environment.json", "result.json", "report.html"
CLASSES = "classes.json"
METRICS, EVALUATIONS, GAMMA = "metrics.jsonl", "eval.jsonl", "gamma.jsonl"
WEIGHTS, WEIGHTS_EMA, CHECKPOINTS = "weights.safetensors", "weights_ema.safetensors", "checkpoints"
WINDOW = 1 << 16
SHIPPED = "pretrained:"
PRETRAINED = Path(__file__).parents[1] / "pretrained"
"""One folder per model whose trained weights come with the package: the files of its run, and a card."""


def is_run(folder: Path) -> bool:
    """Whether `folder` contains a run."""
    return (folder / CONFIG).is_file() and not transformers_config(folder)


def is_stepped(word: str | Path) -> bool:
    """Whether `word` is a folder that `stepsnet stepify` or `deepen` wrote."""
    folder = Path(word).expanduser()
    return (folder / "stepsnet.json").is_file() or "stepsnet" in transformers_config(folder)


def transformers_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model of transformers; empty if there is none. A run has a file of that name too."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # who reads it as a run or as a model of transformers says what is wrong
        return {}
    return found if isinstance(found, dict) and found.keys() & {"architectures", "model_type"} else {}


def is_finished(folder: Path) -> bool:
    """Whether the run in `folder` has finished."""
    return (folder / RESULT).is_file()


def find_runs(root: Path) -> list[Path]:
    """The run folders below `root`, sorted by path. Folders that cannot be read, or vanish, are passed over."""
    return sorted(Path(folder) for folder, _, files in os.walk(root) if CONFIG in files and is_run(Path(folder)))


def shipped_models() -> list[str]:
    """The models whose trained weights come with the package."""
    return sorted(card.parent.name for card in PRETRAINED.glob("*/README.md"))


def pretrained_folder(name: str) -> Path:
    """The run of a model whose trained weights come with the package."""
    known = shipped_models()
    if name not in known:
        how = "train it with `stepsnet train`, or give checkpoint_path="
        raise UsageError(f"there are no pretrained weights of {name}, only of {', '.join(known)}; {how}")
    return PRETRAINED / name


def new_folder(out: str, stem: str) -> Path:
    """A free folder for a new run: `out`, or runs/<stem>-<number> if `out` is empty."""
    if not out:
        numbered = (Path("runs") / f"{stem}-{number}" for number in range(1, sys.maxsize))
        return next(folder for folder in numbered if not folder.exists())
    folder = Path(out)
    if is_finished(folder):
        raise UsageError(f"{folder} holds a finished run, which is not overwritten: give another folder, out=FOLDER. "
                         f"`stepsnet eval {folder}` evaluates it.")
    if is_run(folder):
        raise UsageError(f"{folder} holds an unfinished run, which is not overwritten; "
                         f"`stepsnet resume {folder}` continues it.")
    if folder.exists() and (not folder.is_dir() or any(not e.name.startswith(TEMPORARY) for e in folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder and not a run; give another folder, out=FOLDER.")
    with _usable(folder):
        check_new_folder(folder)
    return folder


def create(folder: Path, config: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> None:
    """Start a run in `folder`. It can be resumed once config.json exists. `machine` joins environment.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ENVIRONMENT, _environment() | dict(machine or {}) | {"seed": config.get("seed")})
    write_json(folder / CONFIG, config)


def record_data(folder: Path, data: Mapping[str, Any]) -> None:
    """Note the place of the data of a resumed run, for later commands."""
    settings = read_settings(folder)
    if settings["data"] != data:
        write_json(folder / CONFIG, settings | {"data": data})


def reopen(folder: Path, config: Mapping[str, Any]) -> None:
    """Make a finished run unfinished again, with another configuration. Its checkpoint stays, and has the weights."""
    write_json(folder / CONFIG, config)
    for name in (RESULT, WEIGHTS, WEIGHTS_EMA):
        (folder / name).unlink(missing_ok=True)


def read_settings(folder: Path) -> dict[str, Any]:
    """config.json as a dictionary; `train.config.read_config` returns it as a checked `TrainConfig`."""
    if not is_run(folder):
        why = f"its {CONFIG} is that of a model" if (folder / CONFIG).is_file() else f"it has no {CONFIG}"
        raise UsageError(f"There is no run in {folder}: {why}.")
    try:
        values = json.loads((folder / CONFIG).read_bytes())
    except ValueError as error:
        raise UsageError(f"{folder / CONFIG} is not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise UsageError(f"{folder / CONFIG} is not a configuration, but {type(values).__name__}.")
    return values


def read_result(folder: Path) -> dict[str, Any]:
    """The last step and final metrics of a finished run; empty if it has not finished."""
    return read_json(folder / RESULT)


def summarize(folder: Path) -> dict[str, Any]:
    """What `stepsnet runs` lists: recipe, model, plan, state, last step and last validation metrics."""
    facts: dict[str, Any] = {"run": str(folder), "recipe": "", "model": "", "plan": None, "state": "unreadable"}
    facts |= {"step": 0, "metrics": {}}
    try:
        config = read_settings(folder)
        named = {"recipe": config.get("recipe") or config["task"], "model": config["model"], "plan": config.get("plan")}
    except (UsageError, KeyError):
        return facts
    state = "finished" if is_finished(folder) else "running" if is_being_trained(folder) else "stopped"
    metrics = {key: value for key, value in last_line(folder / EVALUATIONS).items() if key != "step"}
    return facts | named | {"state": state, "step": last_line(folder / METRICS).get("step", 0), "metrics": metrics}


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder} cannot be used as a run folder: {error.strerror}.") from error


@contextmanager
def only_one_trainer(folder: Path) -> Iterator[None]:
    """Lock the run for this process. The operating system releases the lock when the process ends in any way."""
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{TEMPORARY}lock").open("a+")
    with lock as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # loader workers, which may outlive us, do not inherit it
        except OSError as error:
            raise UsageError(f"{folder} is being trained by another process.") from error
        yield


def is_being_trained(folder: Path) -> bool:
    """Whether another process holds the lock of `folder`."""
    lock = folder / f"{TEMPORARY}lock"
    if not lock.exists():
        return False
    with lock.open() as file:  # for reading: it may belong to another user
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class StepLines:
    """Appends JSON lines with a growing "step". Lines after `keep_until` are removed; a step is never written twice."""

    def __init__(self, path: Path, *, keep_until: int) -> None:
        self.path = path
        self.last_step = _truncate(path, keep_until)
        self._file = path.open("ab", buffering=0)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line, which other processes see at once. NaN and infinity become null."""
        if line["step"] <= self.last_step:
            return
        content = (json.dumps(finite(line)) + "\n").encode()
        with explain_full_disk(self.path, len(content), "What was saved before is intact."):
            while content:  # a write to an almost full disk may be partial
                content = content[self._file.write(content) :]
        self.last_step = line["step"]

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _truncate(path: Path, step: int) -> int:
    """Cut a file of JSON lines after the last complete line of at most `step`; returns that line's step, or −1."""
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
    """The complete lines of a file of JSON lines; empty if the file does not exist."""
    if not path.is_file():
        return []
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in whole if line.endswith("\n")]


def last_line(path: Path) -> dict[str, Any]:
    """The last complete line of a file of JSON lines, without reading the whole file; empty if there is none."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        size, window = file.seek(0, os.SEEK_END), WINDOW
        while True:
            file.seek(max(0, size - window))
            before, _, line = file.read().rpartition(b"\n")[0].rpartition(b"\n")
            if before or window >= size:
                return json.loads(line or b"{}")
            window *= 2


def _environment() -> dict[str, Any]:
    """What a result may depend on besides its configuration. No host or user names."""
    return {
        "stepsnet": stepsnet.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "command": sys.argv[1:],
    }


def _git_commit() -> str | None:
    """The commit of the package's source if it is a git work tree; "+" marks uncommitted changes."""
    source = Path(stepsnet.__file__).parent.parent
    if not (source / ".git").exists():
        return None
    try:
        words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        return subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
