"""Mask R-CNN and Cascade Mask R-CNN over our backbones: training, inference, and their parts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.dense.cascade import STAGES, CascadeRoIHeads, SampledRegions, _box_loss
from stepsnet.dense.config import DetectConfig
from stepsnet.dense.detector import (
    Detector,
    Frame,
    FullPrecision,
    Pyramid,
    detector_macs,
    make_anchors,
    make_pool,
    norm_layer,
)
from stepsnet.dense.results import at_original_size, coco_results
from tests.dense.test_maps import VISION, maps_of

SMALL: dict[str, Any] = {
    "channels": 8, "hidden": 16, "rois": 16, "rpn_samples": 32,
    "candidates": 60, "proposals": 30, "mask_convs": 1, "anchor_scale": 4.0,
}  # fmt: skip
HEADS = ("mask_rcnn", "cascade")


def detector(name: str = "test_steps_swin", **options: Any) -> Detector:
    torch.manual_seed(0)
    return Detector(maps_of(name), DetectConfig(**(SMALL | options)), classes=3)


def batch() -> tuple[Tensor, Tensor, list[dict[str, Tensor]]]:
    """Two images of unequal size; the second has no objects."""
    masks = torch.zeros(2, 64, 72, dtype=torch.uint8)
    masks[0, 3:20, 5:25] = 1
    masks[1, 30:60, 40:70] = 1
    first = {
        "boxes": torch.tensor([[5.0, 3, 25, 20], [40, 30, 70, 60]]),
        "labels": torch.tensor([1, 3]),
        "masks": masks,
    }
    second = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "masks": masks[:0, :50, :41]}
    return torch.randn(2, 3, 64, 72), torch.tensor([[64, 72], [50, 41]]), [first, second]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", VISION)
def test_every_backbone_trains_and_every_parameter_gets_a_gradient(name: str, heads: str) -> None:
    model = detector(name, heads=heads)
    losses = model(*batch())
    assert isinstance(losses, dict)
    total = sum(losses.values(), start=torch.zeros(()))
    assert math.isfinite(total.item())
    total.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("heads", HEADS)
def test_a_batch_without_objects_trains(heads: str) -> None:
    model, (images, sizes, targets) = detector(heads=heads), batch()
    losses = model(images, sizes, [targets[1] | {"masks": torch.zeros(0, 64, 72)}, targets[1]])
    sum(losses.values(), start=torch.zeros(())).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("heads", HEADS)
@torch.no_grad()
def test_detections_lie_inside_the_image_and_are_sorted_by_score(heads: str, masks: bool) -> None:
    model, (images, sizes, _) = detector(heads=heads, masks=masks, detections=7, score=0.0).eval(), batch()
    for found, (height, width) in zip(model(images, sizes), sizes.tolist(), strict=True):
        boxes, scores = found["boxes"], found["scores"]
        assert 0 < len(boxes) <= 7
        assert bool((boxes >= 0).all() and (boxes[:, 0::2] <= width).all() and (boxes[:, 1::2] <= height).all())
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)
        assert set(found["labels"].tolist()) <= {1, 2, 3}
        assert ("masks" in found) == masks


@pytest.mark.parametrize("heads", HEADS)
def test_it_overfits_one_image(heads: str) -> None:
    options = {"rois": 64, "rpn_samples": 128, "masks": False}
    model, (images, sizes, targets) = detector("test_swin", heads=heads, **options), batch()
    # The rate decays and the samples are many, so that rounding, which differs between kernels, hardly matters: Mask
    # R-CNN passes with seeds 9 to 20 too. The largest error among them is 5.2 pixels.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=200)
    for _ in range(200):
        optimizer.zero_grad()
        loss = sum(model(images[:1], sizes[:1], targets[:1]).values(), start=torch.zeros(()))
        loss.backward()
        optimizer.step()
        schedule.step()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # of so few steps the plain average; the first values are far off
            module.reset_running_stats()
    with torch.no_grad():
        for _ in range(5):
            model(images[:1], sizes[:1], targets[:1])
        (found,) = model.eval()(images[:1], sizes[:1])
    for box, label in zip(targets[0]["boxes"], targets[0]["labels"], strict=True):
        right = found["boxes"][(found["labels"] == label) & (found["scores"] > 0.3)]
        assert any((other - box).abs().max() < 6 for other in right), found


def test_the_stages_have_the_settings_of_the_paper() -> None:
    assert [(stage.overlap, stage.weight) for stage in STAGES] == [(0.5, 1.0), (0.6, 0.5), (0.7, 0.25)]
    assert [stage.deltas for stage in STAGES] == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]


def roi_heads(model: Detector) -> CascadeRoIHeads:
    heads = model.rcnn.roi_heads
    assert isinstance(heads, CascadeRoIHeads)
    return heads


def test_later_stages_need_more_overlap() -> None:
    heads, target = (
        roi_heads(detector(heads="cascade")),
        {"boxes": torch.tensor([[0.0, 0, 100, 100]]), "labels": torch.tensor([2])},
    )
    shifted = torch.tensor([[0.0, 0, 100, 100 * overlap] for overlap in (0.45, 0.55, 0.65, 0.75)])
    positive = [
        int((heads.sample(number, shifted, target).labels > 0).sum()) - 1 for number in range(3)
    ]  # besides the object's own box
    assert positive == [3, 2, 1]


def test_scores_are_averaged_over_the_stages() -> None:
    heads = roi_heads(detector(heads="cascade", masks=False, score=0.0, overlap=1.0))
    logits = torch.tensor([[[0.0, 2.0, -50, -50]], [[0.0, 0.0, -50, -50]], [[0.0, -1.0, -50, -50]]])
    heads.box_heads = nn.ModuleList(Always((scores, torch.zeros(1, 16))) for scores in logits)
    heads.box_pool = Always(torch.zeros(1, 1))
    (found,) = heads.detect({}, [torch.tensor([[0.0, 0, 10, 10]])], [(20, 20)])
    expected = logits.softmax(dim=2)[:, 0, 1].mean()
    assert found["scores"][0].item() == pytest.approx(expected.item(), abs=1e-6)


class Always(nn.Module):
    """Returns the same output for every input."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: Any) -> Any:
        return self.answer


def test_the_box_loss_is_generalised_iou_of_positive_regions() -> None:
    """Object 10×10, box half of it: IoU and GIoU are ½. Far away: IoU 0 and a hull of 20×10 without empty area."""
    decoded = torch.zeros(3, 4, 4)
    decoded[0, 2], decoded[1, 2] = torch.tensor([0.0, 0, 10, 5]), torch.tensor([10.0, 0, 20, 10])
    sample = SampledRegions(torch.zeros(3, 4), torch.tensor([2, 2, 0]), torch.zeros(3, dtype=torch.int64))
    loss = _box_loss(decoded, sample.labels, [sample], [{"boxes": torch.tensor([[0.0, 0, 10, 10]])}])
    assert loss.item() == pytest.approx(10 * (0.5 + 1.0) / 3, abs=1e-4)


def test_regions_are_pooled_at_the_true_scale_for_every_image_size() -> None:
    """Maps hold their own x coordinate, so a pooled region must give its centre, also for an image smaller than its
    canvas."""
    pyramid = Pyramid(maps_of("test_swin"), 1)
    pool = make_pool(pyramid, 1)
    maps = {}
    for index, reduction in enumerate(pyramid.reductions[:-1]):
        places = (torch.arange(256 // reduction, dtype=torch.float32) + 0.5) * reduction
        maps[str(index)] = places.expand(1, 1, 256 // reduction, -1)
    boxes = torch.tensor([[20.0, 20, 28, 28], [10.0, 10, 90, 90]])
    middles = pool(maps, [boxes], [(33, 41)]).flatten()
    # torchvision's pooling is not half-pixel aligned: values are half a stride too far to the right.
    assert middles.tolist() == pytest.approx([24 + 1, 50 + 1], abs=1.1)


def test_anchor_sizes_follow_the_stride_of_the_map() -> None:
    pyramid = Pyramid(maps_of("test_swin"), 4)
    anchors = make_anchors(pyramid, DetectConfig(anchor_scale=4.0))
    sides = [float((cell[1, 2:] - cell[1, :2]).max()) for cell in anchors.cell_anchors]  # type: ignore[union-attr]
    assert sides == [4 * reduction for reduction in pyramid.reductions]


def test_a_frame_pads_all_images_to_sides_that_every_map_divides() -> None:
    framed, _ = Frame(32)([torch.ones(3, 40, 50), torch.ones(3, 64, 20)])
    assert framed.tensors.shape == (2, 3, 64, 64)
    assert framed.image_sizes == [(40, 50), (64, 20)]
    assert float(framed.tensors.sum()) == 3 * (40 * 50 + 64 * 20)


def test_outputs_are_single_precision_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert FullPrecision(nn.Linear(2, 2))(torch.zeros(1, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("kind", "layer"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm), ("sync", nn.SyncBatchNorm)]
)
def test_the_norm_of_the_cascade_can_be_chosen(kind: str, layer: type[nn.Module]) -> None:
    assert isinstance(norm_layer(kind)(12), layer)
    heads = roi_heads(detector(heads="cascade", norm=kind))
    assert sum(isinstance(module, layer) for module in heads.modules()) == 12  # three stages of four convolutions


def test_detections_are_scaled_to_the_original_image() -> None:
    found = {
        "boxes": torch.tensor([[4.0, 8, 12, 16]]), "labels": torch.tensor([2]), "scores": torch.tensor([0.5]),
        "masks": torch.ones(1, 1, 28, 28),
    }  # fmt: skip
    (detection,) = at_original_size(found, (32, 32), (64, 128))
    assert detection.box == (16.0, 16.0, 32.0, 16.0)
    assert detection.mask is not None
    assert detection.mask.shape == (64, 128)
    assert detection.mask.sum() == pytest.approx(32 * 16, rel=0.15)
    (result,) = coco_results(5, [detection], [11, 13])
    assert (result["image_id"], result["category_id"], result["bbox"], result["score"]) == (
        5,
        13,
        [16.0, 16.0, 32.0, 16.0],
        0.5,
    )
    assert result["segmentation"]["size"] == [64, 128]


def test_the_macs_of_a_detector_are_the_sum_of_its_parts() -> None:
    """Box head of 1,000 regions: two fully connected layers, scores and boxes of four classes; masks: a conv, a
    doubling, logits."""
    counted = detector_macs(detector(), 64, 64, proposals=1000, detections=100)
    assert counted["boxes"] == 1000 * (8 * 49 * 16 + 16 * 16 + 16 * 4 + 16 * 16)
    assert counted["masks"] == 100 * (196 * 9 * 8 * 8 + 196 * 4 * 8 * 8 + 784 * 8 * 4)
