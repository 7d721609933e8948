"""Our figures for the rows of a table, compared with the printed ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import torch

from stepsnet.cost import Cost, count_params
from stepsnet.models import create_model
from stepsnet.research.paper.tables import PaperRow, PaperTable

TOLERANCE = 0.02  # the paper's counter also counts norms and activations
UNITS = {"params": 1_000_000, "macs": 1_000_000_000}
IMAGE_SIZES = {"mask_rcnn": (800, 1280), "cascade": (800, 1280), "upernet": (512, 2048)}
CLASSES = {"mask_rcnn": 80, "cascade": 80, "upernet": 150}


@dataclass(frozen=True)
class Comparison:
    """One row: `ours` as numbers (and the plan), and a verdict per printed figure.

    Verdicts are "same", "within 2 %", "exception" and "differs".
    """

    row: PaperRow
    ours: dict[str, Any]
    verdicts: dict[str, str]

    @property
    def holds(self) -> bool:
        """Whether every figure agrees or is a listed exception."""
        return "differs" not in self.verdicts.values()

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.row.label,
            "model": self.row.model,
            "options": dict(self.row.options),
            "printed": dict(self.row.printed),
            "ours": self.ours,
            "verdicts": self.verdicts,
            "note": self.row.note,
        }


def reproduce(table: PaperTable) -> Iterator[Comparison]:
    """Each row with our figures; models are built on the meta device."""
    for row in table.rows:
        plan, cost = dense_cost(row) if row.around else _cost(row)
        ours = {"plan": plan, "blocks": cost.blocks, "layers": cost.layers, "params": cost.params, "macs": cost.macs}
        verdicts = {column: _verdict(row, column, ours[column]) for column in row.printed if column in ours}
        yield Comparison(row, ours, verdicts)


def _cost(row: PaperRow) -> tuple[str, Cost]:
    model = create_model(row.model, device="meta", **row.options)
    return model.plan, model.cost()


def dense_cost(row: PaperRow) -> tuple[str, Cost]:
    """The plan of a row's backbone and the cost of the whole detector or segmenter, on the meta device."""
    from stepsnet.dense.maps import make_maps

    height, width = IMAGE_SIZES[row.around]
    model = create_model(row.model, device="meta", **row.options)
    plan, blocks, layers = model.plan, model.count_blocks(), model.count_layers()
    backbone = create_model(row.model, features_only=True, device="meta", **row.options)
    with torch.device("meta"):
        maps = make_maps(backbone)
        if row.around == "upernet":
            from stepsnet.dense.config import SegmentConfig
            from stepsnet.dense.upernet import Segmenter

            segmenter = Segmenter(maps, SegmentConfig(), CLASSES[row.around])
            counted = segmenter.macs(height, width)
            macs = counted["backbone"] + counted["decoder"]
            return plan, Cost(blocks, layers, count_params(segmenter), macs)
        from stepsnet.dense.config import DetectConfig
        from stepsnet.dense.detector import Detector, detector_macs

        settings = DetectConfig(heads="cascade") if row.around == "cascade" else DetectConfig()
        detector = Detector(maps, settings, CLASSES[row.around])
    macs = sum(detector_macs(detector, height, width).values())
    return plan, Cost(blocks, layers, count_params(detector), macs)


def _verdict(row: PaperRow, column: str, ours: Any) -> str:
    printed = row.printed[column]
    if column == "plan":
        return "same" if printed == ours else "exception" if row.note else "differs"
    if column not in UNITS:
        return "same" if int(printed) == ours else "differs"
    exact = Decimal(ours) / UNITS[column]
    if exact.quantize(Decimal(printed), ROUND_HALF_UP) == Decimal(printed):
        return "same"
    if column in row.exceptions:
        return "exception"
    return "within 2 %" if abs(float(exact) / float(printed) - 1) <= TOLERANCE else "differs"
