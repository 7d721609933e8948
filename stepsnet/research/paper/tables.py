"""The tables of arXiv 2511.14329 as data: what each row prints, and which of our models it is.

Columns: blocks, layers, params (millions), macs (the paper's "FLOPs", billions) and a result (accuracy, perplexity),
all as printed.
Where the paper leaves an architecture open, the choice is explained beside the architecture in `models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepsnet.errors import UsageError, nearest


@dataclass(frozen=True)
class PaperRow:
    """One row: `printed` has the paper's strings with their digits; `model` and `options` build our model."""

    label: str
    model: str
    printed: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    exceptions: tuple[str, ...] = ()
    around: str = ""
    """The network built around the backbone: mask_rcnn, cascade or upernet; empty: none."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its rows, the name of its result column, and a note."""

    name: str
    title: str
    result: str
    rows: tuple[PaperRow, ...]
    note: str = ""


def _row(
    label: str, model: str, figures: str, note: str = "", exceptions: tuple[str, ...] = (), **options: Any
) -> PaperRow:
    """`figures` are blocks, layers, params, macs and the result as the paper prints them; "-" where it prints none."""
    printed = _printed(("blocks", "layers", "params", "macs", "result"), figures)
    return PaperRow(label, model, printed, options, note, exceptions)


def _printed(columns: tuple[str, ...], figures: str) -> dict[str, str]:
    return {column: figure for column, figure in zip(columns, figures.split(), strict=True) if figure != "-"}


TABLE_1 = PaperTable(
    "table1",
    "Comparison of different models on ImageNet-1K",
    "top-1 %",
    (
        _row("ResNet-18", "resnet18", "8 18 11.7 1.8 70.2"),
        _row("ResNet-34", "resnet34", "16 34 21.8 3.7 75.0"),
        _row("ResNet-50", "resnet50", "16 50 25.6 4.1 78.8"),
        _row("Steps-ResNet-18", "steps_resnet18", "18 38 11.7 1.8 71.8"),
        _row("Steps-ResNet-34", "steps_resnet34", "34 70 21.8 3.7 76.0"),
        _row("Steps-ResNet-50", "steps_resnet50", "34 104 25.6 4.1 79.9"),
        _row("DeiT-T", "deit_tiny", "12 62 5.7 1.3 72.2"),
        _row("DeiT-S", "deit_small", "12 62 22.1 4.6 79.9"),
        _row("DeiT-B", "deit_base", "12 62 86.6 17.6 81.8"),
        _row("Steps-DeiT-T", "steps_deit_tiny", "24 122 5.7 1.3 73.2"),
        _row("Steps-DeiT-S", "steps_deit_small", "24 122 22.1 4.7 81.0"),
        _row("Steps-DeiT-B", "steps_deit_base", "24 122 86.7 17.9 82.7"),
        _row("Swin-T", "swin_tiny", "12 65 28.3 4.5 81.3"),
        _row("Swin-S", "swin_small", "24 125 49.6 8.8 83.0"),
        _row("Swin-B", "swin_base", "24 125 87.8 15.5 83.5"),
        _row("Steps-Swin-T", "steps_swin_tiny", "26 135 27.8 4.5 82.4"),
        _row("Steps-Swin-S", "steps_swin_small", "38 195 49.1 8.8 83.6"),
        _row("Steps-Swin-B", "steps_swin_base", "38 195 86.7 15.5 84.1"),
    ),
)


def _dense_rows(around: str, figures: dict[str, str], notes: dict[str, str] | None = None) -> tuple[PaperRow, ...]:
    """`figures` are FLOPs, parameters and the result of each model, "-" where the paper prints none."""
    labels = {"swin_tiny": "Swin-T", "swin_small": "Swin-S", "swin_base": "Swin-B"}
    rows = []
    for model, text in figures.items():
        base = model.removeprefix("steps_")
        label = f"{'Steps-' if base != model else ''}{labels[base]}"
        note = (notes or {}).get(model, "")
        rows.append(PaperRow(label, model, _printed(("macs", "params", "result"), text), note=note, around=around))
    return tuple(rows)


_DETECTORS = (
    "At 1280×800: backbone, pyramid and proposal head on the whole image, box heads on 1,000 regions (each of a "
    "cascade's three), mask heads on 100 (each of three); pooling, suppression and pasting are not counted. "
    "Parameters, which the paper does not print here, are for 80 classes"
)
TABLE_2A = PaperTable(
    "table2a",
    "Mask R-CNN on COCO, 1× schedule",
    "AP box/mask",
    _dense_rows(
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
TABLE_2B = PaperTable(
    "table2b",
    "Cascade Mask R-CNN on COCO, 3× schedule",
    "AP box/mask",
    _dense_rows(
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
TABLE_3 = PaperTable(
    "table3",
    "UPerNet on ADE20K",
    "mIoU/mAcc",
    _dense_rows(
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
    "At 512×2048: backbone and main head as in inference, no interpolation. Parameters include the auxiliary head",
)

TABLE_4 = PaperTable(
    "table4",
    "Language modeling perplexity on WikiText-103",
    "perplexity",
    (
        _row("Transformer", "transformer_30m", "6 31 30 - 25.28"),
        _row("Steps-Transformer", "steps_transformer_30m", "12 61 30 - 24.39"),
        _row("Transformer", "transformer_44m", "6 31 44 - 24.45"),
        _row("Steps-Transformer", "steps_transformer_44m", "12 61 45 - 24.00"),
        _row("Transformer", "transformer_63m", "12 61 63 - 22.05"),
        _row("Steps-Transformer", "steps_transformer_63m", "24 121 64 - 21.64"),
    ),
    "Parameters include the embedding, which is also the head. The paper prints no FLOPs; ours are for 128 tokens.",
)

_ROUNDING = "the paper rounds up"
TABLE_5A = PaperTable(
    "table5a",
    "Going deeper with fixed width",
    "top-1 %",
    (
        _row("DeiT", "deit_deep_d24", "24 122 5.6 1.3 72.9"),
        _row("DeiT", "deit_deep_d36", "36 182 8.3 2.0 75.2"),
        _row("DeiT", "deit_deep_d48", "48 242 11.0 2.6 75.7"),
        _row("DeiT", "deit_deep_d72", "72 362 16.4 4.0 75.8"),
        _row("DeiT", "deit_deep_d96", "96 482 21.8 5.3 75.6", "21.75 M, " + _ROUNDING, ("params",)),
        _row("Steps-DeiT", "steps_deit_deep_d24", "24 122 5.9 1.3 73.3"),
        _row("Steps-DeiT", "steps_deit_deep_d36", "36 182 8.8 2.0 77.0", "plan not printed; this one has the sizes"),
        _row("Steps-DeiT", "steps_deit_deep_d48", "48 242 11.3 2.6 78.4", f"11.25 M and 2.547 G, {_ROUNDING}",
             ("params", "macs")),
        _row("Steps-DeiT", "steps_deit_deep_d72", "72 362 16.6 3.8 79.4"),
        _row("Steps-DeiT", "steps_deit_deep_d96", "96 482 22.0 5.1 80.0"),
    ),
)

_RECONSTRUCTED = "plan reconstructed: the paper prints only its size"
TABLE_5B = PaperTable(
    "table5b",
    "Going deeper with fixed FLOPs",
    "top-1 %",
    (
        _row("Swin", "swin_tiny", "12 65 28.3 4.5 81.3"),
        _row("Swin", "swin_deep_d24", "24 125 25.1 4.5 81.8"),
        _row("Swin", "swin_deep_d48", "48 245 24.5 4.5 80.9"),
        _row("Swin", "swin_deep_d72", "72 365 24.1 4.5 80.0"),
        _row("Swin", "swin_deep_d96", "96 485 24.3 4.6 79.8"),
        _row("Steps-Swin", "steps_swin_deep_d14", "14 75 27.8 4.5 81.8"),
        _row("Steps-Swin", "steps_swin_tiny", "26 135 27.8 4.5 82.4"),
        _row("Steps-Swin", "steps_swin_deep_d48", "48 245 28.8 4.6 82.4", _RECONSTRUCTED),
        _row("Steps-Swin", "steps_swin_deep_d64", "64 325 28.8 4.6 82.2", _RECONSTRUCTED),
        _row("Steps-Swin", "steps_swin_deep_d96", "96 485 28.8 4.6 82.1", _RECONSTRUCTED),
    ),
)

TABLE_8 = PaperTable(
    "table8",
    "Ablation on the number of steps",
    "top-1 %",
    tuple(
        _row(f"{steps} step{'s' * (steps > 1)}", "deit_small", figures, plan=steps)
        for steps, figures in enumerate(
            ("12 62 22.1 4.6 79.9", "18 92 22.1 4.7 80.8", "24 122 22.1 4.7 81.0", "30 152 22.1 4.8 81.0",
             "36 182 22.1 4.8 81.2"), start=1
        )
    ),
    "Our plans here are derived from a number of steps alone (plan=1 … 5).",
)

TABLE_9 = PaperTable(
    "table9",
    "Ablation on computation allocation",
    "top-1 %",
    tuple(
        _row(f"({d1}, {d2}, {d3})", "deit_small", figures, plan=f"192x{d1}, 272x{d2}, 384x{d3}")
        for (d1, d2, d3), figures in {
            (0, 0, 12): "12 62 22.1 4.6 79.9",
            (2, 1, 11): "14 72 22.1 4.6 80.5",
            (6, 3, 9): "18 92 22.1 4.7 80.8",
            (12, 6, 6): "24 122 22.1 4.7 81.0",
            (18, 9, 3): "30 152 22.1 4.8 81.0",
            (22, 11, 1): "34 172 22.1 4.9 81.0",
        }.items()
    ),
)

TABLE_10 = PaperTable(
    "table10",
    "The reverse design",
    "top-1 %",
    (
        _row("Reverse", "steps_swin_tiny", "26 135 27.8 4.5 81.3", macro="reverse"),
        _row("Steps-Swin-T", "steps_swin_tiny", "26 135 27.8 4.5 82.4"),
    ),
)

_STAGE_4 = "192x4, 272x2, 384x2, 544x2"
TABLE_11 = PaperTable(
    "table11",
    "Applying StepsNet at different stages of Swin-T",
    "top-1 %",
    (
        _row("stage 1", "swin_tiny", "13 70 28.3 4.5 81.3", plan="68x2, 96x1; 192x2; 384x6; 768x2"),
        _row("stage 2", "swin_tiny", "13 70 28.3 4.5 81.3", plan="96x2; 136x2, 192x1; 384x6; 768x2"),
        _row("stage 3", "swin_tiny", "18 95 28.3 4.5 81.5", plan="96x2; 192x2; 192x6, 272x3, 384x3; 768x2"),
        _row("stage 4", "swin_tiny", "20 105 27.8 4.5 82.2", plan=f"96x2; 192x2; 384x6; {_STAGE_4}"),
        _row("stages 3 and 4", "steps_swin_tiny", "26 135 27.8 4.5 82.4"),
        _row("Swin-T", "swin_tiny", "12 65 28.3 4.5 81.3"),
    ),
)


def _architecture(label: str, model: str, plan: str, note: str = "") -> PaperRow:
    """A row of the appendix: the printed plan, compared with the plan of our model."""
    return PaperRow(label, model, {"plan": plan}, {}, note)


_RESNET_NOTE = "printed 64x1; 128x1 is a slip: the totals need 64x2; 128x3"
_RESNET_34 = "64x6, 90x3, 128x3, 181x3, 256x2; 64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x1"
TABLE_12 = PaperTable(
    "table12",
    "Architectures of ResNet and Steps-ResNet (downsampling blocks not listed)",
    "",
    (
        _architecture("ResNet-18", "resnet18", "64x1; 128x1; 256x1; 512x1"),
        _architecture("ResNet-34", "resnet34", "64x2; 128x3; 256x5; 512x2"),
        _architecture("ResNet-50", "resnet50", "64x2; 128x3; 256x5; 512x2"),
        _architecture(
            "Steps-ResNet-18",
            "steps_resnet18",
            "64x1; 128x1; 64x2, 90x1, 128x1, 181x1, 256x0; 64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x0",
        ),
        _architecture("Steps-ResNet-34", "steps_resnet34", f"64x1; 128x1; {_RESNET_34}", _RESNET_NOTE),
        _architecture("Steps-ResNet-50", "steps_resnet50", f"64x1; 128x1; {_RESNET_34}", _RESNET_NOTE),
    ),
)

TABLE_13 = PaperTable(
    "table13",
    "Architectures of DeiT and Steps-DeiT",
    "",
    (
        _architecture("DeiT-T", "deit_tiny", "192x12"),
        _architecture("DeiT-S", "deit_small", "384x12"),
        _architecture("DeiT-B", "deit_base", "768x12"),
        _architecture("Steps-DeiT-T", "steps_deit_tiny", "96x12, 136x6, 192x6"),
        _architecture("Steps-DeiT-S", "steps_deit_small", "192x12, 272x6, 384x6"),
        _architecture(
            "Steps-DeiT-B",
            "steps_deit_small_d60",
            "96x12, 136x12, 192x12, 272x12, 384x12",
            "the 302-layer model of Sec. 5.2; the 86.7 M of Table 1 are steps_deit_base, 384x12, 544x6, 768x6",
        ),
    ),
)

_SWIN_NOTE = "the printed last step has no blocks; without it the sizes agree with the printed ones"
TABLE_14 = PaperTable(
    "table14",
    "Architectures of Swin and Steps-Swin",
    "",
    (
        _architecture("Swin-T", "swin_tiny", "96x2; 192x2; 384x6; 768x2"),
        _architecture("Swin-S", "swin_small", "96x2; 192x2; 384x18; 768x2"),
        _architecture("Swin-B", "swin_base", "128x2; 256x2; 512x18; 1024x2"),
        _architecture(
            "Steps-Swin-T", "steps_swin_tiny", f"96x2; 192x2; 192x6, 272x3, 384x3; {_STAGE_4}, 768x0", _SWIN_NOTE
        ),
        _architecture(
            "Steps-Swin-S", "steps_swin_small", f"96x2; 192x2; 192x6, 272x3, 384x15; {_STAGE_4}, 768x0", _SWIN_NOTE
        ),
        _architecture(
            "Steps-Swin-B",
            "steps_swin_base",
            "128x2; 256x2; 256x6, 360x3, 512x15; 256x4, 360x2, 512x2, 720x2, 1024x0",
            _SWIN_NOTE,
        ),
    ),
)

TABLES = {
    table.name: table
    for table in (
        TABLE_1, TABLE_2A, TABLE_2B, TABLE_3, TABLE_4, TABLE_5A, TABLE_5B,
        TABLE_8, TABLE_9, TABLE_10, TABLE_11, TABLE_12, TABLE_13, TABLE_14,
    )
}  # fmt: skip


def get_tables(name: str) -> list[PaperTable]:
    """The tables of that name: one, both halves of a divided one ("table2", "table5"), or "all"."""
    found = [table for table in TABLES.values() if name in (table.name, table.name.rstrip("ab"), "all")]
    if not found:
        known = f"known: {', '.join(TABLES)}, all"
        raise UsageError(f"there is no reproduction of '{name}'{nearest(name, TABLES)}; {known}")
    return found
