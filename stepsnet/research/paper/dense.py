"""Tables 2 and 3: detectors and segmenters, what the paper prints of them and what ours cost."""

from __future__ import annotations

import torch

from stepsnet.cost import Cost, count_params
from stepsnet.models import create_model
from stepsnet.research.paper.rows import Row, Table

PICTURES = {"mask_rcnn": (800, 1280), "cascade": (800, 1280), "upernet": (512, 2048)}
CLASSES = {"mask_rcnn": 80, "cascade": 80, "upernet": 150}


def _rows(around: str, figures: dict[str, str], notes: dict[str, str] | None = None) -> tuple[Row, ...]:
    """`figures` are FLOPs, parameters and the result of each model, "-" where the paper prints none."""
    labels = {"swin_tiny": "Swin-T", "swin_small": "Swin-S", "swin_base": "Swin-B"}
    rows = []
    for model, text in figures.items():
        base = model.removeprefix("steps_")
        label = f"{'Steps-' if base != model else ''}{labels[base]}"
        printed = {column: figure for column, figure in zip(("macs", "params", "result"), text.split(), strict=True) if figure != "-"}
        rows.append(Row(label, model, printed, note=(notes or {}).get(model, ""), around=around))
    return tuple(rows)


_DETECTORS = (
    "At 1280×800: backbone, pyramid and proposals' head on the whole picture, box heads on 1,000 regions (a cascade's three on as many "
    "each), mask heads on 100 (three likewise); pooling, suppression and pasting are not counted. Parameters, which the paper does not "
    "print here, are of 80 classes"
)
TABLE_2A = Table(
    "table2a",
    "Mask R-CNN on COCO, 1× schedule",
    "AP box/mask",
    _rows(
        "mask_rcnn",
        {
            "swin_tiny": "267 - 43.7/39.8",
            "steps_swin_tiny": "266 - 44.1/40.2",
            "swin_small": "359 - 45.7/41.1",
            "steps_swin_small": "357 - 46.3/41.9",
            "swin_base": "503 - 46.9/42.3",
            "steps_swin_base": "501 - 47.1/42.5",
        },
    ),
    _DETECTORS,
)
TABLE_2B = Table(
    "table2b",
    "Cascade Mask R-CNN on COCO, 3× schedule",
    "AP box/mask",
    _rows(
        "cascade",
        {
            "swin_tiny": "745 - 50.4/43.7",
            "steps_swin_tiny": "745 - 51.2/44.3",
            "swin_small": "837 - 51.9/45.0",
            "steps_swin_small": "836 - 52.3/45.2",
            "swin_base": "981 - 51.9/45.0",
            "steps_swin_base": "979 - 52.5/45.4",
        },
    ),
    _DETECTORS,
)
TABLE_3 = Table(
    "table3",
    "UPerNet on ADE20K",
    "mIoU/mAcc",
    _rows(
        "upernet",
        {
            "swin_tiny": "945 60 44.5/55.6",
            "steps_swin_tiny": "941 58 45.5/56.8",
            "swin_small": "- - -",
            "steps_swin_small": "- - -",
            "swin_base": "- - -",
            "steps_swin_base": "- - -",
        },
        {
            "swin_small": "not in the paper; Swin's own prints 81 M and 1038 G",
            "swin_base": "not in the paper; Swin's own prints 121 M and 1188 G",
        },
    ),
    "At 512×2048: backbone and main head, as in inference; interpolation is not counted. Parameters include the auxiliary head",
)


def dense_cost(row: Row) -> tuple[str, Cost]:
    """The plan of a row's backbone, and what the network around it costs. Everything is made and run on the meta device."""
    from stepsnet.dense.maps import make_maps

    height, width = PICTURES[row.around]
    model = create_model(row.model, device="meta", **row.options)
    shape, plan = model.closed_form(), model.plan
    backbone = create_model(row.model, features_only=True, device="meta", **row.options)
    with torch.device("meta"):
        maps = make_maps(backbone)
        if row.around == "upernet":
            from stepsnet.dense.upernet import SegmentConfig, Segmenter

            segmenter = Segmenter(maps, SegmentConfig(), CLASSES[row.around])
            counted = segmenter.macs(height, width)
            return plan, Cost(shape.blocks, shape.layers, count_params(segmenter), counted["backbone"] + counted["decoder"])
        from stepsnet.dense.config import DetectConfig
        from stepsnet.dense.count import detector_macs
        from stepsnet.dense.detector import Detector

        settings = DetectConfig(heads="cascade") if row.around == "cascade" else DetectConfig()
        detector = Detector(maps, settings, CLASSES[row.around])
    return plan, Cost(shape.blocks, shape.layers, count_params(detector), sum(detector_macs(detector, height, width).values()))
