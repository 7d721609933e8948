"""The steps of the loop: accumulation, clipping, precision, non-finite values, callbacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from stepsnet.errors import RunFailed
from stepsnet.models import load_model
from stepsnet.runs.folder import EVALUATIONS, METRICS, read_lines
from stepsnet.train.callbacks import Callback
from stepsnet.train.trainer import Trainer, resume, train
from tests.train.synthetic import (
    At,
    NoisyTask,
    PoweredOffError,
    fingerprint,
    in_processes,
    power_off,
    small_config,
    terminate,
)


def losses(folder: Path) -> list[float | None]:
    return [line["loss"] for line in read_lines(folder / METRICS)]


def test_a_trainer_can_be_used_directly(tmp_path: Path) -> None:
    trainer = Trainer(small_config(tmp_path / "run", "iters=2"), task=NoisyTask())
    before = trainer.evaluate()
    result = trainer.fit()
    assert (result.finished, trainer.step, trainer.out) == (True, 2, tmp_path / "run")
    assert before is not None
    assert trainer.metrics == result.metrics != before


def test_the_loss_falls(tmp_path: Path) -> None:
    found = train(small_config(tmp_path / "run", "iters=40", "eval.every=20"), task=NoisyTask())
    values = [line["loss"] for line in read_lines(tmp_path / "run" / METRICS)]
    assert sum(values[-5:]) < 0.7 * sum(values[:5])
    assert found.metrics["top1"] > 0.5


@pytest.mark.parametrize("word", ["accumulate=4", "grad_checkpointing=true", "workers=1"])
def test_the_same_losses_with_other_settings_of_equal_meaning(word: str, tmp_path: Path) -> None:
    train(small_config(tmp_path / "plain"), task=NoisyTask())
    train(small_config(tmp_path / "other", word), task=NoisyTask())
    assert losses(tmp_path / "other") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)


COMPILED = ["compile=true", "compile_backend=aot_eager", "plan=32x1"]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch hides it itself, unless it is an error
@pytest.mark.parametrize("words", [["precision=bf16"], COMPILED, ["optim.name=sgd", "lr=0.1"]])
def test_other_precisions_and_options_learn(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepsnet.train.distributed.has_bf16", lambda: True)
    train(small_config(tmp_path / "run", "iters=25", *words), task=NoisyTask())
    values = [line["loss"] for line in read_lines(tmp_path / "run" / METRICS)]
    assert sum(values[-5:]) < 0.95 * sum(values[:5])


def test_a_cpu_without_bf16_instructions_trains_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepsnet.train.distributed.has_bf16", lambda: False)
    for precision in ("fp32", "bf16"):
        train(small_config(tmp_path / precision, "iters=3", f"precision={precision}"), task=NoisyTask())
    assert losses(tmp_path / "bf16") == losses(tmp_path / "fp32")


def test_stochastic_depth_changes_the_losses_and_depends_on_the_seed(tmp_path: Path) -> None:
    for name, words in {
        "a": ["drop_path=0.5"],
        "b": ["drop_path=0.5"],
        "c": ["drop_path=0.5", "seed=1"],
        "d": [],
    }.items():
        train(small_config(tmp_path / name, "iters=2", *words), task=NoisyTask())
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") not in (losses(tmp_path / "c"), losses(tmp_path / "d"))


class Updates(Callback):
    """Records the norm of each update of the weights."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_start(self, trainer: Trainer) -> None:
        self._before = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        now = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        self.norms.append((now - self._before).norm().item())
        self._before = now


def test_the_gradient_is_clipped_to_the_limit(tmp_path: Path) -> None:
    updates = Updates()
    words = [
        "optim.name=sgd",
        "optim.momentum=0",
        "optim.weight_decay=0",
        "schedule.kind=constant",
        "lr=1.0",
        "optim.clip=0.01",
        "iters=3",
    ]
    train(small_config(tmp_path / "run", *words), [updates], task=NoisyTask())
    assert updates.norms == pytest.approx([0.01] * 3, rel=1e-3)
    assert min(line["grad_norm"] for line in read_lines(tmp_path / "run" / METRICS)) > 0.1


def test_a_non_finite_loss_stops_before_the_update_and_names_the_samples(tmp_path: Path) -> None:
    task = NoisyTask(poisoned=[3, 7])
    with pytest.raises(
        RunFailed, match=r"The loss of step \d is not finite; the samples are .*earlier checkpoints are unchanged"
    ) as caught:
        train(small_config(tmp_path / "run", "accumulate=8", "checkpoint.every=1"), task=task)
    assert any(
        f"the samples are {ids}." in str(caught.value) for ids in ("3", "7", "3, 7")
    )  # of the accumulated part, not of the batch
    for path in (tmp_path / "run" / "checkpoints").rglob("weights.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_tensors(path))


def load_tensors(path: Path) -> list[torch.Tensor]:
    from safetensors.torch import load_file

    return list(load_file(path).values())


def test_a_non_finite_gradient_stops_the_run(tmp_path: Path) -> None:
    class Overflowing(NoisyTask):
        def loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss = super().loss(model, batch)
            return loss + (loss - loss.detach()).abs().sqrt()  # finite, but of infinite slope

    with pytest.raises(RunFailed, match=r"The gradient of step 1 is not finite; the samples are (\d+, ){7}\d+\."):
        train(small_config(tmp_path / "run"), task=Overflowing())


def test_a_skipped_batch_changes_nothing(tmp_path: Path) -> None:
    """Not even the running statistics of batch norm, which the forward pass has already changed."""
    out = tmp_path / "run"
    train(small_config(out, "nonfinite=skip", "model=test_resnet", "iters=5"), task=NoisyTask(poisoned=[3]))
    lines = read_lines(out / METRICS)
    bad = [line for line in lines if line["loss"] is None]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert len(bad) == 1
    assert bad[0]["left_out"] == 1
    assert 3 in bad[0]["ids"]
    assert all(tensor.isfinite().all() for tensor in load_model(out / "weights.safetensors").state_dict().values())


def test_skipping_stops_after_the_limit(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="more than the nonfinite_limit=2 steps"):
        train(small_config(tmp_path / "run", "nonfinite=skip", "nonfinite_limit=2"), task=NoisyTask(poisoned=range(40)))


def test_all_processes_react_to_a_non_finite_loss_of_one(tmp_path: Path) -> None:
    def work() -> Any:
        train(small_config(tmp_path / "run", "parallel=ddp", "nonfinite=skip", "iters=5"), task=NoisyTask(poisoned=[3]))
        try:
            train(small_config(tmp_path / "stop", "parallel=ddp", "iters=5"), task=NoisyTask(poisoned=[3]))
        except RunFailed as error:
            return str(error)

    first, second = in_processes(2, work)
    assert first == second
    assert "is not finite; the samples are" in first
    assert [line["loss"] is None for line in read_lines(tmp_path / "run" / METRICS)].count(True) == 1


def test_unreadable_samples_are_counted_and_the_others_keep_their_weight(tmp_path: Path) -> None:
    train(small_config(tmp_path / "run", "iters=5"), task=NoisyTask(damaged=[0, 1, 2]))
    assert sum(line.get("unreadable", 0) for line in read_lines(tmp_path / "run" / METRICS)) == 3
    assert sum(line["images"] for line in read_lines(tmp_path / "run" / METRICS)) == 37


class Record(Callback):
    """Records the calls in order."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def on_start(self, trainer: Trainer) -> None:
        self.entries.append(f"start {trainer.step}")

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        self.entries.append(f"step {step}")

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        self.entries.append(f"evaluate {step}")

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        self.entries.append(f"save {step}")

    def on_end(self, trainer: Trainer) -> None:
        self.entries.append(f"end {trainer.step}")

    def close(self) -> None:
        self.entries.append("close")


def test_callbacks_are_called_in_order(tmp_path: Path) -> None:
    record = Record()
    train(small_config(tmp_path / "run", "iters=3", "eval.every=2", "checkpoint.every=2"), [record], task=NoisyTask())
    told = ["start 0", "step 1", "step 2", "evaluate 2", "save 2", "step 3", "evaluate 3", "save 3", "end 3", "close"]
    assert record.entries == told


def test_callbacks_are_closed_after_an_error(tmp_path: Path) -> None:
    record = Record()
    with pytest.raises(PoweredOffError):
        train(small_config(tmp_path / "run"), [record, At(1, power_off)], task=NoisyTask())
    assert record.entries == ["start 0", "step 1", "close"]


def test_an_evaluation_prevented_by_a_stop_runs_after_the_resume(tmp_path: Path) -> None:
    words = ["iters=4", "eval.every=2", "checkpoint.every=0"]
    first = train(small_config(tmp_path / "run", *words), [At(1, terminate)], task=NoisyTask())
    assert (first.step, read_lines(tmp_path / "run" / EVALUATIONS)) == (2, [])
    resume(tmp_path / "run", task=NoisyTask())
    assert [line["step"] for line in read_lines(tmp_path / "run" / EVALUATIONS)] == [2, 4]


def test_evaluations_do_not_change_the_training(tmp_path: Path) -> None:
    for every in (0, 1):
        words = ["model=test_resnet", f"eval.every={every}", "optim.ema=0.5", "drop_path=0.3"]
        train(small_config(tmp_path / str(every), *words), task=NoisyTask())
    assert fingerprint(tmp_path / "0") == fingerprint(tmp_path / "1")


def test_layer_decay_reaches_the_optimiser(tmp_path: Path) -> None:
    shares: set[float] = set()

    class Look(Callback):
        def on_start(self, trainer: Trainer) -> None:
            shares.update(group["lr_share"] for group in trainer.optimizer.param_groups)

    train(small_config(tmp_path / "run", "optim.layer_decay=0.5", "iters=1"), [Look()], task=NoisyTask())
    assert shares == {0.5**k for k in range(6)}


def test_the_result_is_in_the_run_folder(tmp_path: Path) -> None:
    found = train(small_config(tmp_path / "run"), task=NoisyTask())
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == {"step": 12, **found.metrics}
    assert resume(tmp_path / "run", task=NoisyTask()) == found
