"""What stepify or deepen did to a model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from torch import nn

from stepsnet.errors import UsageError
from stepsnet.units import si

ATTRIBUTE = "stepsnet_report"


@dataclass(frozen=True)
class SurgeryReport:
    """Plans are one string a stage, joined by ";".

    Costs are those of the whole model for one input of shape `input`.
    """

    what: str
    """"stepify" or "deepen"."""
    model: str
    library: str
    plan_before: str
    plan_after: str
    blocks_before: int
    blocks_after: int
    params_before: int
    params_after: int
    macs_before: int
    macs_after: int
    input: tuple[int, ...]
    blocks: tuple[str, ...] = ()
    """Names of the model's residual blocks, in order."""
    join: str = "plain"
    """stepify: how the channels of a wider step are joined."""
    heads: dict[int, int] = field(default_factory=dict)
    """Heads of blocks of each width, where the rule is known."""
    moved: dict[str, str] = field(default_factory=dict)
    """deepen: the old name of each block → its new one."""
    added: tuple[str, ...] = ()
    """deepen: names of the new blocks."""
    difference: float | None = None
    """deepen: the largest absolute change of an output on the batch of the verification."""
    with_gradient: tuple[str, ...] = ()
    """deepen: parameters of new blocks that receive a gradient other than zero at the first step."""
    notes: tuple[str, ...] = ()

    @property
    def macs_change(self) -> float:
        return self.macs_after / self.macs_before - 1 if self.macs_before else 0.0

    @property
    def params_change(self) -> float:
        return self.params_after / self.params_before - 1

    def to_json(self) -> str:
        return json.dumps(
            {**asdict(self), "macs_change": self.macs_change, "params_change": self.params_change}, indent=2
        )

    def __str__(self) -> str:
        join = f"   (join {self.join})" if self.what == "stepify" else ""
        lines = [
            f"{self.what} of {self.model} ({self.library or 'own model'})",
            f"  plan        {self.plan_before}  →  {self.plan_after}{join}",
            f"  blocks      {self.blocks_before} → {self.blocks_after} in the plan",
            f"  parameters  {si(self.params_before)} → {si(self.params_after)}  ({self.params_change:+.1%})",
            f"  MACs        {si(self.macs_before)} → {si(self.macs_after)}  ({self.macs_change:+.1%})",
            f"  input       {self.input}",
        ]
        if self.heads:
            lines.append(
                "  heads       " + ", ".join(f"{count} at width {width}" for width, count in sorted(self.heads.items()))
            )
        if self.added:
            lines.append(f"  new blocks  {len(self.added)}: {', '.join(self.added)}")
        if self.difference is not None:
            lines.append(f"  outputs     max |Δ| = {self.difference:g} on one batch")
        if self.with_gradient:
            lines.append(
                f"  gradients   {len(self.with_gradient)} parameters of new blocks receive one at the first step"
            )
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def surgery_report(model: nn.Module) -> SurgeryReport:
    """What was last done to `model` by stepify or deepen."""
    report = getattr(model, ATTRIBUTE, None)
    if not isinstance(report, SurgeryReport):
        raise UsageError(f"this {type(model).__name__} was not changed by stepify or deepen, so there is no report")
    return report
