"""The doctor: one look at a model, or at a run, and what it means (`stepsnet doctor`).

It measures (doctor_measure), compares with the lines drawn in doctor_limits, and says where the shortcut degrades, where gradients vanish
or explode, whether depth and width are used, what happens at the joins, and what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn

from stepsnet.analysis.doctor_design import design_of
from stepsnet.analysis.doctor_limits import LIMITS
from stepsnet.analysis.doctor_measure import Vitals, measure_vitals
from stepsnet.analysis.doctor_rules import SEVERITIES, Advise, Circumstances, Finding, advise_in_python, judge
from stepsnet.files import finite

HEALTHY = "No finding: nothing that the doctor measures is out of order."


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a model, worst first, and the numbers behind them. `weights` says initialisation and step, `data` the inputs."""

    name: str
    weights: str
    data: str
    findings: list[Finding]
    vitals: Vitals

    @property
    def healthy(self) -> bool:
        """Whether there is nothing but notes."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def verdict(self) -> str:
        counts = {kind: sum(finding.severity == kind for finding in self.findings) for kind in SEVERITIES}
        words = [f"{count} {kind}{'s' if count > 1 and kind != 'severe' else ''}" for kind, count in counts.items() if count]
        return ("Healthy" if self.healthy else "Needs attention") + (f": {', '.join(words)}." if words else f". {HEALTHY}")

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs and for the page."""
        vitals = asdict(self.vitals)
        vitals["blocks"] = [{key: finite(value) for key, value in block.items()} for block in vitals["blocks"]]
        vitals["joins"] = [{key: finite(value) for key, value in join.items()} for join in vitals["joins"]]
        return {
            "name": self.name, "weights": self.weights, "data": self.data, "healthy": self.healthy, "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings], **vitals, "limits": asdict(LIMITS),
        }  # fmt: skip

    def with_findings(self, more: Iterable[Finding], advise: Advise) -> Diagnosis:
        """The same with findings from elsewhere, a run's curves, in their place; one that is no worse than its like now is left out."""
        known = next((each.severity for each in self.findings if each.name == "shortcut-degrades"), "")
        news = [each for each in more if each.name != "shortcut-degraded-on-the-way" or _rank(each.severity) < _rank(known)]
        both = [*self.findings, *(_advised(each, advise) for each in news)]
        return replace(self, findings=sorted(both, key=lambda each: _rank(each.severity)))


def diagnose(
    model: nn.Module,
    *inputs: Any,
    loss: Callable[[], Tensor] | None = None,
    blocks: Iterable[nn.Module] | None = None,
    channel_dim: int | None = None,
    name: str = "",
    weights: str = "",
    data: str = "the inputs given",
    trained: bool | None = None,
    clip: float = 0.0,
    advise: Advise = advise_in_python,
) -> Diagnosis:
    """Examine `model(*inputs)`; `blocks` and `channel_dim` as in `shortcut_ratio`, which finds the residual blocks of most models itself.

    `loss()` runs the model and returns the scalar to differentiate; without one, it is a random projection of the output. `weights` says in
    words which weights these are, since a γ means little without; `trained=False`, that they are as initialised, when quiet branches are
    no fault; `clip`, to which norm gradients are clipped in its training (0: not at all). `advise` turns changes into a command for this
    model. The model is left as it was.
    """
    vitals = measure_vitals(model, *inputs, loss=loss, blocks=blocks, channel_dim=channel_dim, idle_below=LIMITS.idle)
    about = Circumstances(design_of(model), trained, weights or ("as initialised" if trained is False else "training step unknown"), clip)
    findings = [_advised(finding, advise) for finding in judge(vitals, about)]
    return Diagnosis(name or type(model).__name__, about.when, data, findings, vitals)


def _advised(finding: Finding, advise: Advise) -> Finding:
    return replace(finding, command=advise(finding.change)) if finding.change else finding


def _rank(severity: str) -> int:
    """0 is the worst; what is no severity comes last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
