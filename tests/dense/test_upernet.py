"""UPerNet over our backbones: training, also with one image per batch, and inference by windows, scales and mirror
images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.data.dense.masks import VOID
from stepsnet.dense.config import SegmentConfig
from stepsnet.dense.upernet import Segmenter, SingleValueBatchNorm2d, _starts
from stepsnet.errors import UsageError
from tests.dense.test_maps import VISION, maps_of


def segmenter(name: str = "test_steps_swin", **options: Any) -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(maps_of(name), SegmentConfig(channels=8, auxiliary_channels=8, **options), classes=5)


def batch(count: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 64, 64), torch.randint(0, 5, (count, 64, 64))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", VISION)
def test_every_backbone_trains_also_with_a_batch_of_one(name: str, count: int) -> None:
    model = segmenter(name)
    loss = model(*batch(count))
    loss.backward()
    assert loss.isfinite()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_it_overfits_one_image(norm: str) -> None:
    model, images = segmenter("test_swin", norm=norm), torch.zeros(1, 3, 64, 64)
    images[:, :, :, 32:] = 1.0
    labels = (images[:, 0] > 0.5).long() * 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        model(images, labels).backward()
        optimizer.step()
    model.train()  # the batch's own statistics: the running ones have seen 30 steps only
    with torch.no_grad():
        assert (model.logits(images).argmax(dim=1) == labels).float().mean() > 0.95


def test_the_backbone_is_registered_with_transformers() -> None:
    from transformers import AutoBackbone, UperNetForSemanticSegmentation

    from stepsnet.dense.upernet import StepsNetBackbone

    model = segmenter()
    assert isinstance(model.upernet, UperNetForSemanticSegmentation)
    assert isinstance(model.upernet.backbone, StepsNetBackbone)
    assert isinstance(AutoBackbone.from_config(model.upernet.config.backbone_config), StepsNetBackbone)


def test_logits_equal_those_of_transformers() -> None:
    model, (images, _) = segmenter().eval(), batch()
    with torch.no_grad():
        torch.testing.assert_close(model.logits(images), model.upernet(images).logits)


def test_transformers_does_not_initialise_the_backbone_again() -> None:
    maps = maps_of("test_swin")
    before = {name: parameter.clone() for name, parameter in maps.named_parameters()}
    Segmenter(maps, SegmentConfig(channels=8), classes=3)
    assert all(torch.equal(parameter, before[name]) for name, parameter in maps.named_parameters())


def test_void_pixels_are_not_learned() -> None:
    model, (images, labels) = segmenter(norm="group"), batch()
    labels[:, :32] = VOID
    torch.manual_seed(1)
    ours = model(images, labels)
    logits = [
        nn.functional.interpolate(head(model.upernet.backbone(images).feature_maps), size=(64, 64), mode="bilinear")[
            :, :, 32:
        ]
        for head in (model.upernet.decode_head, model.upernet.auxiliary_head)
    ]
    expected = [nn.functional.cross_entropy(part, labels[:, 32:]) for part in logits]
    torch.testing.assert_close(ours, expected[0] + 0.4 * expected[1])


def test_an_image_of_only_void_has_no_gradient() -> None:
    model, (images, labels) = segmenter(), batch()
    model(images, torch.full_like(labels, VOID)).backward()
    assert not any(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)


def test_the_loss_of_a_batch_is_the_mean_of_its_parts() -> None:
    model, (images, labels) = segmenter(norm="group"), batch(2)
    labels[0, :50] = VOID
    parts = [model(images[i : i + 1], labels[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(model(images, labels), sum(parts, start=torch.zeros(())) / 2)


def test_without_auxiliary_weight_there_is_no_auxiliary_head() -> None:
    assert segmenter(auxiliary_weight=0.0).upernet.auxiliary_head is None


@torch.no_grad()
def test_a_window_as_large_as_the_image_changes_nothing() -> None:
    model, (images, _) = segmenter().eval(), batch()
    whole = model(images)
    model.config = SegmentConfig(window=64)
    torch.testing.assert_close(model(images), whole)


@torch.no_grad()
def test_windows_are_averaged_where_they_overlap() -> None:
    model, (images, _) = segmenter().eval(), batch(1)
    model.config = SegmentConfig(window=48, stride=16)
    found = model(images)
    parts = {
        (top, left): model.logits(images[:, :, top : top + 48, left : left + 48]).softmax(1)
        for top in (0, 16)
        for left in (0, 16)
    }
    torch.testing.assert_close(found[:, :, 2, 2], parts[0, 0][:, :, 2, 2])
    middle = sum((part[:, :, 32 - top, 32 - left] for (top, left), part in parts.items()), start=torch.zeros(1, 5)) / 4
    torch.testing.assert_close(found[:, :, 32, 32], middle)


@pytest.mark.parametrize(("length", "starts"), [(64, [0]), (65, [0, 1]), (160, [0, 42, 84, 96]), (30, [0])])
def test_windows_cover_the_image_and_the_last_one_ends_at_its_border(length: int, starts: list[int]) -> None:
    assert _starts(length, 64, 42) == starts


@torch.no_grad()
def test_scales_and_mirror_images_are_averaged() -> None:
    model, (images, _) = segmenter().eval(), batch(1)
    plain, mirrored = model(images), model(images.flip(3)).flip(3)
    model.config = SegmentConfig(flip=True)
    torch.testing.assert_close(model(images), (plain + mirrored) / 2)
    model.config = SegmentConfig(scales=(0.5, 1.5, 3))
    many = model(images)
    assert many.shape == plain.shape
    torch.testing.assert_close(many.sum(dim=1), torch.ones(1, 64, 64))


def test_batch_norm_of_one_value_uses_running_statistics() -> None:
    norm = SingleValueBatchNorm2d(3).train()
    before = norm.running_mean.clone()  # type: ignore[union-attr]
    torch.testing.assert_close(norm(torch.ones(1, 3, 1, 1)), torch.ones(1, 3, 1, 1), atol=1e-4, rtol=0)
    assert torch.equal(norm.running_mean, before)  # type: ignore[arg-type]
    norm(torch.ones(1, 3, 2, 2))
    assert not torch.equal(norm.running_mean, before)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"channels": 0}, {"auxiliary_weight": -1.0}, {"window": 8, "stride": 9}, {"scales": (2.0, 1.0, 2)}]
)
def test_invalid_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"segment.{next(iter(options))}"):
        SegmentConfig(**options)
