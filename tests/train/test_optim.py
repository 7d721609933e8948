"""Weight decay, learning rates per layer, schedules and the average of the weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stepsnet.data.config import DataConfig
from stepsnet.errors import UsageError
from stepsnet.models import create_model, layer_ids
from stepsnet.models.model import Model
from stepsnet.train.build import optimizer_of, parameter_groups
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig
from stepsnet.train.distributed import model_tensors
from stepsnet.train.optim import WeightAverage, lr_share, set_lr


def group_of(groups: list[dict[str, object]], parameter: nn.Parameter) -> dict[str, object]:
    (found,) = [group for group in groups if any(member is parameter for member in group["params"])]  # type: ignore[attr-defined]
    return found


def test_biases_norms_and_named_parameters_are_not_decayed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    groups = parameter_groups(model, 0.1, undecayed={"2.weight"})
    decays = {name: group_of(groups, parameter)["weight_decay"] for name, parameter in model.named_parameters()}
    assert decays == {"0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0, "2.weight": 0.0, "2.bias": 0.0}


def test_each_layer_learns_slower_than_the_next() -> None:
    model = create_model("test_deit")
    assert isinstance(model, Model)
    layers = layer_ids(model)
    groups = parameter_groups(model, 0.1, layer_decay=0.5, layers=layers)
    shares = {layers[name]: group_of(groups, parameter)["lr_share"] for name, parameter in model.named_parameters()}
    assert shares == {layer: 0.5 ** (max(layers.values()) - layer) for layer in sorted(shares)}
    assert len(shares) == 6  # stem, four blocks, head


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert [len(group["params"]) for group in parameter_groups(model, 0.1)] == [1]


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_groups_get_their_share_of_the_learning_rate(name: str, kind: type) -> None:
    model, optim = create_model("test_deit"), OptimConfig(name=name, layer_decay=0.5)  # type: ignore[arg-type]
    assert isinstance(model, Model)
    data = DataConfig(kind="digits")
    config = TrainConfig(task="classification", model="", iters=1, batch_size=1, lr=0.1, data=data, optim=optim)
    optimizer = optimizer_of(config, model)
    set_lr(optimizer, 0.4)
    assert isinstance(optimizer, kind)
    assert {group["lr"] for group in optimizer.param_groups} == {0.4 * 0.5**layer for layer in range(6)}


def test_cosine_rises_to_the_peak_and_falls_to_the_end() -> None:
    config = ScheduleConfig(kind="cosine", warmup_iters=10, start=0.1, end=0.01)
    shares = [lr_share(config, step, 111, 10) for step in range(111)]
    assert shares[:11] == pytest.approx([0.1 + 0.09 * step for step in range(11)])
    assert shares[60] == pytest.approx((1 + 0.01) / 2)
    assert shares[-1] == pytest.approx(0.01)
    assert sorted(shares[10:], reverse=True) == shares[10:]


@pytest.mark.parametrize(
    ("kind", "power", "middle"), [("poly", 1.0, 0.5), ("poly", 0.9, 0.5**0.9), ("constant", 1.0, 1.0)]
)
def test_other_schedules(kind: str, power: float, middle: float) -> None:
    config = ScheduleConfig(kind=kind, power=power, end=0.0)  # type: ignore[arg-type]
    assert lr_share(config, 50, 101, 10) == pytest.approx(middle)


def test_the_longer_warm_up_is_used() -> None:
    config = ScheduleConfig(warmup_epochs=2, warmup_iters=5, start=0.0)
    assert lr_share(config, 10, 1000, 10) == pytest.approx(0.5)


def test_the_average_follows_weights_and_copies_counters() -> None:
    model = nn.BatchNorm1d(3)
    average = WeightAverage(model_tensors(model), 0.75)
    nn.init.constant_(model.weight, 5.0)
    model.load_state_dict({**model.state_dict(), "num_batches_tracked": torch.tensor(9)})
    average.update()
    assert average.tensors["weight"].tolist() == [2.0, 2.0, 2.0]
    assert average.tensors["num_batches_tracked"].item() == 9


def test_the_model_gets_its_own_weights_back_bit_exactly() -> None:
    model = nn.Linear(3, 3)
    before = model.weight.clone()
    average = WeightAverage(model_tensors(model), 0.9)
    nn.init.constant_(model.weight, math.pi)
    with average.in_the_model():
        assert torch.equal(model.weight, before)
    assert torch.equal(model.weight, torch.full_like(before, math.pi))


def test_the_detection_schedule_divides_by_ten_twice() -> None:
    config = ScheduleConfig(kind="steps", warmup_iters=2, start=0.5)
    shares = [lr_share(config, step, 24, 2) for step in range(24)]
    assert shares[:3] == [0.5, 0.75, 1.0]
    assert [step for step in range(3, 24) if shares[step] < shares[step - 1]] == [16, 22]  # epochs 8 and 11 of 12
    assert shares[-1] == pytest.approx(0.01)


def test_drops_out_of_order_are_refused() -> None:
    with pytest.raises(UsageError, match=r"schedule\.drops"):
        ScheduleConfig(kind="steps", drops=(0.9, 0.5))
