"""The run folder: each line once and complete, free names, one trainer at a time."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from stepsnet.errors import RunFailed, UsageError
from stepsnet.runs.folder import (
    EVALUATIONS,
    METRICS,
    StepLines,
    create,
    find_runs,
    is_being_trained,
    last_line,
    new_folder,
    only_one_trainer,
    read_lines,
    summarize,
)  # fmt: skip
from stepsnet.train.config import read_config

ROOT = Path(__file__).parents[2]


def write(path: Path, steps: list[int]) -> None:
    lines = StepLines(path, keep_until=0)
    for step in steps:
        lines.append({"step": step, "loss": step / 2})
    lines.close()


def test_lines_after_the_checkpoint_and_incomplete_lines_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3, 4])
    with path.open("a") as file:
        file.write('{"step": 5, "lo')
    lines = StepLines(path, keep_until=3)
    lines.append({"step": 4, "loss": 9.0})
    lines.close()
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 9.0)]


def test_a_step_is_written_once(tmp_path: Path) -> None:
    write(tmp_path / "lines", [1, 2, 2, 1, 3])
    assert [line["step"] for line in read_lines(tmp_path / "lines")] == [1, 2, 3]


def test_nan_and_infinity_become_null(tmp_path: Path) -> None:
    lines = StepLines(tmp_path / "lines", keep_until=0)
    lines.append({"step": 1, "loss": float("nan"), "norm": float("inf")})
    lines.close()
    assert json.loads((tmp_path / "lines").read_text(), parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "norm": None,
    }


def test_a_full_disk_is_reported_with_path_and_bytes(tmp_path: Path) -> None:
    lines = StepLines(tmp_path / "metrics.jsonl", keep_until=0)
    lines.close()
    lines._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115  (the kernel's own full disk)
    with pytest.raises(RunFailed, match=r"disk is full: .*metrics\.jsonl needs 25 bytes"):
        lines.append({"step": 1, "loss": 0.5})
    lines.close()


def test_the_last_line_of_a_long_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "lines", list(range(1, 5000)))
    with (tmp_path / "lines").open("a") as file:
        file.write('{"step": 5000, "lo')
    assert last_line(tmp_path / "lines") == {"step": 4999, "loss": 2499.5}
    assert last_line(tmp_path / "nothing") == {}


def test_a_last_line_longer_than_the_window_is_found(tmp_path: Path) -> None:
    line = {"step": 2, "ids": list(range(20_000))}
    (tmp_path / "lines").write_text(f'{{"step": 1}}\n{json.dumps(line)}\n')
    assert last_line(tmp_path / "lines") == line


def test_a_new_folder_gets_the_next_free_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_folder("", "digits-test_deit") == Path("runs/digits-test_deit-1")
    Path("runs/digits-test_deit-1").mkdir(parents=True)
    assert new_folder("", "digits-test_deit") == Path("runs/digits-test_deit-2")


def test_a_folder_with_temporary_files_only_is_free(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".tmp-config.json-123").write_text("{")
    assert new_folder(str(tmp_path / "run"), "") == tmp_path / "run"


def test_a_second_trainer_is_refused(tmp_path: Path) -> None:
    def enter(answers: multiprocessing.SimpleQueue[str]) -> None:
        try:
            with only_one_trainer(tmp_path):
                answers.put("entered")
        except UsageError as error:
            answers.put(str(error))

    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()

    def second() -> str:
        process = context.Process(target=enter, args=(answers,))
        process.start()
        process.join()
        return answers.get()

    with only_one_trainer(tmp_path):
        assert "is being trained by another process" in second()
    assert second() == "entered"
    assert not is_being_trained(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"), [("{", "is not JSON"), ("[1]", "is not a configuration"), ('{"lr": 1}', "is missing")]
)
def test_a_damaged_configuration_is_an_error(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        read_config(tmp_path)


def test_runs_are_found_and_summarised(tmp_path: Path) -> None:
    create(tmp_path / "b" / "run", {"task": "language", "recipe": "", "model": "test_transformer", "seed": 3})
    write(tmp_path / "b" / "run" / METRICS, [1, 2])
    write(tmp_path / "b" / "run" / EVALUATIONS, [2])
    for other, content in (("a", "{}"), ("model", '{"model_type": "llama"}')):  # damaged; a model of transformers
        (tmp_path / other).mkdir()
        (tmp_path / other / "config.json").write_text(content)
    unreadable, run = map(summarize, find_runs(tmp_path))
    assert (unreadable["run"], unreadable["state"]) == (str(tmp_path / "a"), "unreadable")
    assert (run["recipe"], run["model"], run["state"], run["step"]) == ("language", "test_transformer", "stopped", 2)
    assert run["metrics"] == {"loss": 1.0}


def test_the_run_folder_needs_no_torch() -> None:
    code = "import sys, stepsnet.runs.folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-S", "-c", code], check=False, cwd=ROOT).returncode == 0
