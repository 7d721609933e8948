"""Our figures for the rows of a table, and how they stand to the printed ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from stepsnet.cost import Cost
from stepsnet.models import create_model
from stepsnet.research.paper.dense import dense_cost
from stepsnet.research.paper.rows import Row, Table

TOLERANCE = 0.02  # the paper's counter adds a little for norms and activations
UNITS = {"params": 1_000_000, "macs": 1_000_000_000}


@dataclass(frozen=True)
class Comparison:
    """One row: `ours` in plain numbers (and the plan), `verdicts` one a printed figure: "same", "within 2 %", "exception" or "differs"."""

    row: Row
    ours: dict[str, Any]
    verdicts: dict[str, str]

    @property
    def holds(self) -> bool:
        """Every figure agrees, or is an exception we know and show."""
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


def reproduce(table: Table) -> Iterator[Comparison]:
    """Build every row's model on the meta device and take its cost in closed form, which the tests hold equal to the counted one."""
    for row in table.rows:
        plan, cost = dense_cost(row) if row.around else _cost(row)
        ours = {"plan": plan, "blocks": cost.blocks, "layers": cost.layers, "params": cost.params, "macs": cost.macs}
        verdicts = {column: _verdict(row, column, ours[column]) for column in row.printed if column in ours}
        yield Comparison(row, ours, verdicts)


def _cost(row: Row) -> tuple[str, Cost]:
    model = create_model(row.model, device="meta", **row.options)
    return model.plan, model.closed_form()


def _verdict(row: Row, column: str, ours: Any) -> str:
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
