"""Cascade R-CNN's three stages (arXiv 1712.00726), as RoI heads for torchvision's framework, trained as in Swin.

Each stage refines the boxes of the previous one, and is trained on regions with a higher overlap. Boxes are
class-specific. Their loss is the generalised IoU after decoding. Scores and masks are averaged over the stages.

Legend: K regions, G objects of an image, L classes with the background, which is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.optional.torchvision import import_torchvision

import_torchvision()

from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher  # noqa: E402
from torchvision.models.detection.roi_heads import maskrcnn_loss  # noqa: E402
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, generalized_box_iou_loss, remove_small_boxes  # noqa: E402

Targets = list[dict[str, Tensor]]
GIOU_WEIGHT = 10.0
SMALLEST_SIDE = 1e-2  # of a box, in pixels


@dataclass(frozen=True)
class CascadeStage:
    """The IoU from which a region is positive, the scale of the box deltas, and the weight of the losses."""

    overlap: float
    deltas: tuple[float, float, float, float]
    weight: float


STAGES = (
    CascadeStage(0.5, (10.0, 10.0, 5.0, 5.0), 1.0),
    CascadeStage(0.6, (20.0, 20.0, 10.0, 10.0), 0.5),
    CascadeStage(0.7, (30.0, 30.0, 15.0, 15.0), 0.25),
)


@dataclass(frozen=True)
class SampledRegions:
    """The regions of one image that a stage is trained on."""

    boxes: Tensor
    labels: Tensor
    matched: Tensor
    """The object of each region; arbitrary for background regions."""


class CascadeRoIHeads(nn.Module):
    """Replaces torchvision's `RoIHeads`: features and proposals in, detections and losses out."""

    def __init__(
        self, *, box_pool: nn.Module, box_heads: Sequence[nn.Module], mask_pool: nn.Module | None,
        mask_heads: Sequence[nn.Module], rois: int, score: float, overlap: float, detections: int,
    ) -> None:
        super().__init__()
        self.box_pool, self.mask_pool = box_pool, mask_pool
        self.box_heads, self.mask_heads = nn.ModuleList(box_heads), nn.ModuleList(mask_heads)
        self.score, self.overlap, self.detections = score, overlap, detections
        self.sampler = BalancedPositiveNegativeSampler(rois, 0.25)
        self.matchers = [Matcher(stage.overlap, stage.overlap, allow_low_quality_matches=False) for stage in STAGES]
        self.coders = [BoxCoder(stage.deltas) for stage in STAGES]

    def forward(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[Targets, dict[str, Tensor]]:
        if self.training:
            assert targets is not None
            return [], self.losses(features, proposals, image_shapes, targets)
        return self.detect(features, proposals, image_shapes), {}

    def losses(
        self, features: dict[str, Tensor], boxes: list[Tensor], shapes: list[tuple[int, int]], targets: Targets
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, stage in enumerate(STAGES):
            samples = [self.sample(number, *pair) for pair in zip(boxes, targets, strict=True)]
            regions, labels = [sample.boxes for sample in samples], torch.cat([sample.labels for sample in samples])
            scores, deltas = self.box_heads[number](self.box_pool(features, regions, shapes))
            decoded = self.coders[number].decode(deltas, regions).view(len(labels), -1, 4)
            losses[f"loss_classifier_{number}"] = stage.weight * F.cross_entropy(scores, labels)
            losses[f"loss_box_{number}"] = stage.weight * _box_loss(decoded, labels, samples, targets)
            if self.mask_pool is not None:
                losses[f"loss_mask_{number}"] = stage.weight * self.mask_loss(
                    number, features, samples, shapes, targets
                )
            boxes = self.refined(decoded, scores, labels, regions, shapes)
        return losses

    @torch.no_grad()
    def sample(self, number: int, boxes: Tensor, target: dict[str, Tensor]) -> SampledRegions:
        """Regions for the losses of a stage, including the objects' own boxes."""
        boxes = torch.cat((boxes, target["boxes"]))
        if len(target["boxes"]) == 0:
            labels = matched = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        else:
            matched = self.matchers[number](box_iou(target["boxes"], boxes))
            labels = target["labels"][matched.clamp(min=0)] * (matched >= 0)
        (positive,), (negative,) = self.sampler([labels])
        chosen = (positive | negative).bool().nonzero()[:, 0]
        return SampledRegions(boxes[chosen], labels[chosen], matched[chosen].clamp(min=0))

    def mask_loss(
        self, number: int, features: dict[str, Tensor], samples: list[SampledRegions], shapes: list[tuple[int, int]],
        targets: Targets,
    ) -> Tensor:
        """The loss of the masks, over positive regions only."""
        assert self.mask_pool is not None
        regions = [sample.boxes[sample.labels > 0] for sample in samples]
        matched = [sample.matched[sample.labels > 0] for sample in samples]
        logits = self.mask_heads[number](self.mask_pool(features, regions, shapes))
        masks, labels = [target["masks"] for target in targets], [target["labels"] for target in targets]
        return maskrcnn_loss(logits, regions, masks, labels, matched)

    @torch.no_grad()
    def refined(
        self, decoded: Tensor, scores: Tensor, labels: Tensor | None, regions: list[Tensor],
        shapes: list[tuple[int, int]],
    ) -> list[Tensor]:
        """Boxes for the next stage: of the true class in training, of the best class otherwise."""
        most_probable = 1 + scores[:, 1:].argmax(dim=1)
        chosen = most_probable if labels is None else torch.where(labels > 0, labels, most_probable)
        boxes = decoded[torch.arange(len(decoded), device=decoded.device), chosen].split(
            [len(each) for each in regions]
        )
        clipped = (clip_boxes_to_image(each, shape) for each, shape in zip(boxes, shapes, strict=True))
        if labels is None:
            return list(clipped)  # no region is dropped: scores are averaged over the stages
        return [each[remove_small_boxes(each, SMALLEST_SIDE)] for each in clipped]

    def detect(self, features: dict[str, Tensor], boxes: list[Tensor], shapes: list[tuple[int, int]]) -> Targets:
        counts = [len(each) for each in boxes]
        decoded, probabilities = torch.empty(0), []
        for number in range(len(STAGES)):
            scores, deltas = self.box_heads[number](self.box_pool(features, boxes, shapes))
            probabilities.append(scores.softmax(dim=1))
            decoded = self.coders[number].decode(deltas, boxes).view(len(scores), -1, 4)
            boxes = self.refined(decoded, scores, None, boxes, shapes)
        parts = zip(decoded.split(counts), torch.stack(probabilities).mean(dim=0).split(counts), shapes, strict=True)
        found = [self.best(*part) for part in parts]
        if self.mask_pool is not None:
            pooled = self.mask_pool(features, [each["boxes"] for each in found], shapes)
            masks = torch.stack([head(pooled).sigmoid() for head in self.mask_heads]).mean(dim=0)
            labels = torch.cat([each["labels"] for each in found])
            own = masks[torch.arange(len(labels), device=labels.device), labels][:, None]
            for each, mask in zip(found, own.split([len(each["labels"]) for each in found]), strict=True):
                each["masks"] = mask
        return found

    def best(self, boxes: Tensor, scores: Tensor, shape: tuple[int, int]) -> dict[str, Tensor]:
        """The detections of one image from boxes (K, L, 4) and scores (K, L): score threshold, then NMS per class."""
        region, column = (scores[:, 1:] > self.score).nonzero(as_tuple=True)
        labels = column + 1
        boxes, scores = clip_boxes_to_image(boxes[region, labels], shape), scores[region, labels]
        large = remove_small_boxes(boxes, SMALLEST_SIDE)
        boxes, scores, labels = boxes[large], scores[large], labels[large]
        kept = batched_nms(boxes, scores, labels, self.overlap)[: self.detections]
        return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept]}


def _box_loss(decoded: Tensor, labels: Tensor, samples: list[SampledRegions], targets: Targets) -> Tensor:
    """Generalised IoU loss of positive regions from decoded boxes (K, L, 4), divided by the number of all regions."""
    wanted = [
        target["boxes"][sample.matched] if len(target["boxes"]) else sample.boxes
        for sample, target in zip(samples, targets, strict=True)
    ]
    positive = (labels > 0).nonzero()[:, 0]
    ours, theirs = decoded[positive, labels[positive]], torch.cat(wanted)[positive]
    return GIOU_WEIGHT * generalized_box_iou_loss(ours, theirs, reduction="sum") / max(len(labels), 1)
