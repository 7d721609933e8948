"""`stepsnet doctor`: measures a model or a run, and reports problems with the rule, the number and the change to make.

measure.py measures the model, rules.py compares the numbers with limits, curves.py does the same for a run's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn

from stepsnet.analysis.doctor.curves import EARLIER
from stepsnet.analysis.doctor.measure import Measurements, measure_model, traits_of
from stepsnet.analysis.doctor.rules import LIMITS, SEVERITIES, Advise, Context, Finding, advise_in_python, check
from stepsnet.files import finite


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a model, most severe first, and the measurements. `weights` states initialisation and step."""

    name: str
    weights: str
    data: str
    findings: list[Finding]
    measured: Measurements

    @property
    def healthy(self) -> bool:
        """Whether all findings are notes."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The findings counted: "Problems found: 1 severe, 2 warnings." """
        counts = {kind: sum(finding.severity == kind for finding in self.findings) for kind in SEVERITIES}
        words = [f"{count} {kind}{'s' * (count > 1 and kind != 'severe')}" for kind, count in counts.items() if count]
        start = "No problems found" if self.healthy else "Problems found"
        return f"{start}: {', '.join(words)}." if words else f"{start}."

    def to_json(self) -> dict[str, Any]:
        """All fields, for programs and for the page."""
        return finite({
            "name": self.name, "weights": self.weights, "data": self.data, "healthy": self.healthy,
            "verdict": self.verdict, "findings": [asdict(finding) for finding in self.findings],
            **asdict(self.measured), "limits": asdict(LIMITS),
        })  # fmt: skip

    def with_findings(self, more: Iterable[Finding], advise: Advise) -> Diagnosis:
        """With further findings, of a run's curves. An earlier loss of the shortcut counts if it was worse than now."""
        now = next((each.severity for each in self.findings if each.name == "shortcut-degrades"), "")
        added = [each for each in more if each.name != EARLIER or _rank(each.severity) < _rank(now)]
        both = [*self.findings, *(_advised(each, advise) for each in added)]
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
    """The diagnosis of `model(*inputs)`. `blocks` and `channel_dim` are those of `shortcut_ratio`.

    `loss()` runs the model and returns the scalar to differentiate; by default a random projection of the output.
    `weights` describes the weights, because γ depends on them. `trained=False` means weights as initialised, where
    small branches are no problem. `clip` is the norm to which its training clips gradients, 0 if it does not. `advise`
    turns changes into a command for this model. The model is left unchanged.
    """
    measured = measure_model(
        model, *inputs, loss=loss, blocks=blocks, channel_dim=channel_dim, idle_below=LIMITS.idle
    )  # fmt: skip
    described = weights or ("as initialised" if trained is False else "training step unknown")
    context = Context(traits_of(model), trained, described, clip)
    findings = [_advised(finding, advise) for finding in check(measured, context)]
    return Diagnosis(name or type(model).__name__, described, data, findings, measured)


def _advised(finding: Finding, advise: Advise) -> Finding:
    return replace(finding, command=advise(finding.change)) if finding.change else finding


def _rank(severity: str) -> int:
    """0 for the most severe; the largest number for an unknown severity."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
