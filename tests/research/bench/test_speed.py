"""Who is compared with whom, what is written down about it, and never how long it took."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stepsnet.errors import UsageError
from stepsnet.models import create_model
from stepsnet.research.bench import SpeedSettings, run_speed
from stepsnet.research.bench.speed import How, baseline_of, make_contenders, ours
from stepsnet.research.bench.timing import cpu_kind, describe_machine, matmul_peak, random_batch


def peak(dtype: str) -> float:
    return {"fp32": 1e11, "bf16": 2e11}[dtype]


def quick(*against: str, modes: tuple[str, ...] = ("inference",), dtypes: tuple[str, ...] = ("fp32",)) -> SpeedSettings:
    return SpeedSettings(against=against, batches=(2,), modes=modes, dtypes=dtypes, rounds=2)


@pytest.mark.parametrize("name", ["test_deit", "test_swin"])
def test_timm_has_the_same_weights_and_answers(name: str) -> None:
    document = run_speed({name: create_model(name)}, quick("timm"), peak=peak)
    (case,) = document["cases"]
    theirs, own = case["contenders"]
    assert (theirs["label"], own["label"]) == ("timm", "stepsnet")
    assert theirs["macs"] == own["macs"]
    assert own["difference"] < 1e-4


def test_the_difference_from_timm_can_be_seen() -> None:
    model = create_model("test_deit")
    theirs, own = make_contenders(model, ["timm"], How(), alike=False, scratch=Path())
    assert own.module is not None
    x = random_batch(model, 2)
    with torch.no_grad():
        own.module.get_parameter("head.bias").add_(1.0)
    assert (theirs.answer(x) - own.answer(x)).abs().max() > 1e-3


def test_timm_has_no_other_residual_design() -> None:
    with pytest.raises(UsageError, match="timm has no test_deit with the residual design 'layerscale'"):
        make_contenders(create_model("test_deit", residual="layerscale"), ["timm"], How(), alike=False, scratch=Path())


def test_figures_follow_from_the_seconds() -> None:
    document = run_speed({"test_steps_deit": create_model("test_steps_deit")}, quick("baseline"), peak=peak)
    (case,) = document["cases"]
    base, steps = case["contenders"]
    assert base["model"] == "test_deit"
    assert base["ratio"]["median"] == 1.0
    assert steps["throughput"] == pytest.approx(2 / steps["time"]["median"])
    assert steps["gflops"] == pytest.approx(2 * steps["macs"] * steps["throughput"] / 1e9)
    assert steps["share_of_peak"] == pytest.approx(steps["gflops"] / 100)
    assert steps["ratio_per_mac"]["median"] == pytest.approx(steps["ratio"]["median"] * steps["macs"] / base["macs"])
    assert steps["difference"] is None


def test_a_training_step_counts_three_forward_passes() -> None:
    document = run_speed({"test_deit": create_model("test_deit")}, quick("eager", modes=("training",)), peak=peak)
    one = document["cases"][0]["contenders"][1]
    assert one["gflops"] == pytest.approx(3 * 2 * one["macs"] * one["throughput"] / 1e9)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_resnet", "test_steps_swin", "test_steps_transformer"])
def test_every_family_runs_in_both_precisions(name: str, mode: str) -> None:
    settings = quick("baseline", modes=(mode,), dtypes=("fp32", "bf16"))
    ticks: list[None] = []
    document = run_speed({name: create_model(name)}, settings, peak=peak, tick=lambda: ticks.append(None))
    assert [case["dtype"] for case in document["cases"]] == ["fp32", "bf16"]
    assert len(ticks) == settings.count_passes(1) == 2 * 2 * 3


def test_several_models_are_compared_with_the_first() -> None:
    names = ["test_deit", "test_steps_deit", "test_swin"]
    document = run_speed({name: create_model(name) for name in names}, quick(), peak=peak)
    (case,) = document["cases"]
    assert case["model"] is None
    assert [one["label"] for one in case["contenders"]] == names


def test_a_training_pass_leaves_no_gradients() -> None:
    model = create_model("test_deit")
    contender = ours("ours", model, How("training"))
    contender.one_pass(random_batch(model, 2))()
    assert contender.module is not None
    assert contender.module.training
    assert all(parameter.grad is None for parameter in contender.module.parameters())


def test_the_given_model_is_left_as_it_was() -> None:
    model = create_model("test_resnet").train()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    run_speed({"test_resnet": model}, quick("eager", modes=("inference", "training"), dtypes=("bf16",)), peak=peak)
    assert model.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("steps_deit_small", "deit_small"), ("steps_swin_deep_d96", "swin_deep_d96"),
        ("steps_swin_deep_d14", "swin_tiny"),
        ("steps_deit_small_d60", "deit_small"), ("test_steps_transformer", "test_transformer"),
    ],
)  # fmt: skip
def test_baselines(name: str, baseline: str) -> None:
    assert baseline_of(create_model(name, device="meta")) == baseline


def test_the_baseline_of_a_plan_is_the_model_without_it() -> None:
    assert baseline_of(create_model("test_deit", plan=2, device="meta")) == "test_deit"


def test_a_plain_network_has_no_baseline() -> None:
    message = "swin_tiny is already a plain network and has no baseline; its StepsNet version is steps_swin_tiny"
    with pytest.raises(UsageError, match=message):
        baseline_of(create_model("swin_tiny", device="meta"))


def test_exported_models_do_not_train(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be trained"):
        make_contenders(create_model("test_deit"), ["onnxruntime"], How("training"), alike=False, scratch=tmp_path)


def test_exported_models_answer_as_ours(tmp_path: Path) -> None:
    model = create_model("test_deit")
    exported, own = make_contenders(model, ["onnxruntime"], How(), alike=False, scratch=tmp_path)
    x = random_batch(model, 3)
    assert exported.label == "onnxruntime, exported here"
    assert (exported.answer(x) - own.answer(x)).abs().max() < 1e-4


def test_the_machine_is_described_without_its_name() -> None:
    import platform

    found = describe_machine()
    assert found["threads"] == torch.get_num_threads()
    assert platform.node() not in json.dumps(found)


def test_the_processor_is_named_with_family_and_model(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name : Some CPU\ncpu family : 6\nmodel : 143\nmodel name : Another\n")
    assert cpu_kind(tmp_path / "cpuinfo") == "Some CPU (family 6, model 143)"


def clock_of(speed: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that a product of two square matrices moves on by the time it takes at that speed."""
    now = [0.0]

    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        now[0] += 2 * len(left) ** 3 / speed[len(left)]
        return right

    monkeypatch.setattr(torch.Tensor, "__matmul__", multiply)
    return lambda: now[0]


def test_the_peak_is_the_best_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = {16: 1e6, 32: 9e6, 64: 4e6}
    assert matmul_peak("fp32", sizes=tuple(speed), clock=clock_of(speed, monkeypatch)) == pytest.approx(9e6)


def test_the_peak_is_measured_in_bounded_time_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = dict.fromkeys((128, 256, 512, 1024, 2048), 1e8)  # products of 2048² would take 170 s each
    clock = clock_of(speed, monkeypatch)
    assert matmul_peak("bf16", clock=clock) == pytest.approx(1e8)
    assert clock() <= 2.0


def test_only_the_peak_of_what_is_benchmarked_is_measured() -> None:
    asked: list[str] = []

    def record(dtype: str) -> float:
        asked.append(dtype)
        return 1e11

    document = run_speed({"test_deit": create_model("test_deit")}, quick(), peak=record)
    assert asked == ["fp32"] == list(document["peak_gflops"])
