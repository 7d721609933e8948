"""From numbers to findings: each rule looks at the vitals of a model and says what is wrong, by how much, and what to change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal, TypeAlias

from stepsnet.analysis.doctor_design import Design
from stepsnet.analysis.doctor_limits import LIMITS
from stepsnet.analysis.doctor_measure import BlockVitals, JoinVitals, Vitals
from stepsnet.files import finite

Severity: TypeAlias = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")

Advise: TypeAlias = Callable[[Mapping[str, str]], str]
"""From changes ({"join": "matched"}) to the command or code that makes them, for the model at hand."""


@dataclass(frozen=True)
class Finding:
    """What is wrong (`what`, with its number), which rule says so (`rule`: `value` against `limit`), and what to change."""

    name: str
    severity: Severity
    what: str
    rule: str
    value: float
    limit: float
    advice: str
    change: Mapping[str, str] = field(default_factory=dict)
    """The advice for programs: options and their new values."""
    command: str = ""
    """What makes the change in the model at hand."""

    def to_json(self) -> dict[str, Any]:
        return {key: finite(value) for key, value in vars(self).items()}


@dataclass(frozen=True)
class Circumstances:
    """What the rules must know besides the numbers: what the model has already, and whether it was trained, and how."""

    design: Design
    trained: bool | None
    when: str
    """Initialisation and training step, in words."""
    clip: float = 0.0
    """The largest norm of the gradient in its training; 0: not clipped."""


def advise_in_python(changes: Mapping[str, str]) -> str:
    """For a model that has no name: the parts of this package that do it."""
    lines = {
        "plan": "stepsnet.StepsNet(steps=[F1, F2, F3], widths=[C // 2, round(C / 2**0.5), C], join=\"matched\")",
        "join": 'stepsnet.StepsNet(steps, widths, join="matched")',
        "residual": "x + scale * branch(norm(x)), scale = nn.Parameter(torch.full((C,), 1e-5))",
        "clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "lr": "a lower learning rate, or a longer warm-up",
    }
    return next((line for key, line in lines.items() if key in changes), "")


def judge(vitals: Vitals, about: Circumstances) -> list[Finding]:
    """All findings, the worst first."""
    broken = list(_not_finite(vitals.blocks))
    found = broken or [
        *_shortcut(vitals, about), *_overwritten(vitals, about.design), *_gradients(vitals, about), *_starved(vitals),
        *_idle(vitals, about), *_slices(vitals), *_width(vitals), *_overflow(vitals, about.design),
    ]  # fmt: skip
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _not_finite(blocks: Sequence[BlockVitals]) -> Iterator[Finding]:
    """The first block whose state is not finite; or, on the way back, the first whose gradient is not, which is the last in order."""
    states = [number for number, block in enumerate(blocks, 1) if not (math.isfinite(block.sigma) and math.isfinite(block.largest))]
    gradients = [number for number, block in enumerate(blocks, 1) if not math.isfinite(block.state_gradient)]
    if states or gradients:
        number, which = (states[0], "state") if states else (gradients[-1], "gradient")
        what = f"The {which} is not finite at block {number} of {len(blocks)} ({blocks[number - 1].name})."
        advice = "Start again from weights that are finite, with a lower learning rate, clipping, or quieter branches."
        yield Finding("not-finite", "severe", what, "every state and gradient is finite", number, 0, advice, {"lr": ""})


def shortcut_finding(gamma: Sequence[float], design: Design, when: str) -> Finding | None:
    """Sec. 3.1: where the shortcut has been drowned by the branches."""
    known = [value for value in gamma if math.isfinite(value)]  # a state that is the same in all channels has no γ
    if not known or (middle := median(known)) >= LIMITS.gamma:
        return None
    severe = middle < LIMITS.gamma_severe
    shallow = len(gamma) <= LIMITS.shallow
    severity: Severity = "warning" if severe and shallow else "severe" if severe else "note" if shallow else "warning"
    first = next(number for number, value in enumerate(gamma, 1) if value < LIMITS.gamma)
    what = (
        f"The shortcut degrades: γ = σ(z_0)/σ(z_l) falls below {LIMITS.gamma:g} at block {first} of {len(gamma)}, has a median of "
        f"{middle:.3g} and ends at {gamma[-1]:.3g} ({when}). So little of the input is left in what later blocks see (Eq. 2)."
    )
    if design.steps:
        advice = f"Give the narrow steps more of the blocks, or {_quieten(design)}: the wide steps drown the shortcut."
    elif design.cut:
        advice = f"Cut the stack into steps of growing width, which leave most channels alone at first (Eq. 5), or {_quieten(design)}."
    else:
        advice = f"No three steps can be derived from its widths; what is left is to {_quieten(design)}."
    change = dict(design.cut) or _scaled(design)
    if shallow:
        advice += f" With {len(gamma)} blocks it need not hurt: networks as shallow have learned well so."
    rule = f"median γ over depth is at least {LIMITS.gamma:g}, and {LIMITS.gamma_severe:g} at the very least"
    return Finding("shortcut-degrades", severity, what, rule, middle, LIMITS.gamma, advice, change)


def _shortcut(vitals: Vitals, about: Circumstances) -> Iterator[Finding]:
    found = shortcut_finding([block.gamma for block in vitals.blocks], about.design, about.when)
    if found is not None:
        early = about.trained is False and found.severity == "severe"  # small embeddings alone make γ low before training, and they grow
        yield replace(found, severity="warning") if early else found


def _quieten(design: Design) -> str:
    if not design.scales:
        return "start the branches quietly (LayerScale)"
    if design.quiet:
        return "let the scales of the branches learn more slowly"
    return "start the scales of the branches lower, or let them learn more slowly"


def _scaled(design: Design) -> dict[str, str]:
    """LayerScale, for those who have nothing like it."""
    return {} if design.scales else {"residual": "layerscale"}


def _overwritten(vitals: Vitals, design: Design) -> Iterator[Finding]:
    number, block = max(enumerate(vitals.blocks, 1), key=lambda pair: pair[1].update)
    if block.update <= LIMITS.update:
        return
    what = f"Block {number} of {len(vitals.blocks)} ({block.name}) adds {block.update:.3g} times what it is given: it replaces the state."
    advice = f"Divide the initial weights of each branch's last layer by √(2 × blocks), as GPT-2 does, or {_quieten(design)}."
    rule = f"‖z_l − z_(l−1)‖ / ‖z_(l−1)‖ stays below {LIMITS.update:g}"
    yield Finding("state-replaced", "warning", what, rule, block.update, LIMITS.update, advice, _scaled(design))


def _gradients(vitals: Vitals, about: Circumstances) -> Iterator[Finding]:
    design, norms = about.design, [block.state_gradient for block in vitals.blocks]
    if not any(norms):
        yield _no_gradient(about.trained)
    if norms[-1] == 0:
        return  # there is no ratio to speak of
    span = norms[0] / norms[-1]
    rule = f"‖∂L/∂z‖ at the first and the last block are within a factor of {LIMITS.gradient_span:g}"
    if span < 1 / LIMITS.gradient_span:
        lost = max(number for number, norm in enumerate(norms, 1) if norm * LIMITS.gradient_span < norms[-1])
        what = f"Gradients vanish: ‖∂L/∂z‖ at the first block is {span:.2g} of that at the last; a thousandth is left at block {lost}."
        advice = "Make every block z + R(norm(z)) with the norm inside the branch, so that the shortcut carries the gradient."
        if design.cut:
            advice += " If it is so already, cut the stack into steps."
        change = dict(design.cut) or _scaled(design)
        yield Finding("gradients-vanish", "severe", what, rule, span, 1 / LIMITS.gradient_span, advice, change)
    elif span > LIMITS.gradient_span:
        what = f"Gradients explode on their way back: ‖∂L/∂z‖ at the first block is {span:.2g} times that at the last."
        besides, change = ("lower the learning rate", {"lr": ""}) if about.clip else ("clip gradients", {"clip": "1.0"})
        advice = f"Give the last layers of the branches smaller initial weights or {_quieten(design)}, and {besides}."
        yield Finding("gradients-explode", "severe", what, rule, span, LIMITS.gradient_span, advice, _scaled(design) or change)


def _no_gradient(trained: bool | None) -> Finding:
    """Nothing to say before training, where a head of zeros may be meant so; afterwards nothing is learned."""
    rule = "‖∂L/∂z‖ at the last block is above 0"
    if trained is False:
        what = "No gradient comes back from the head, as where its weights are zero: how gradients fare in the blocks cannot be said."
        advice = "Before training a head of zeros may be meant so (timm's MLP-Mixer); then examine the model after a few steps."
        return Finding("no-gradient", "note", what, rule, 0.0, 0.0, advice)
    what = "No gradient comes back to any block: with these weights and this loss none of them would learn."
    advice = "Look for what stops it behind the last block: a head of zeros, a dead activation, a detached state, a loss that is flat."
    return Finding("no-gradient", "warning", what, rule, 0.0, 0.0, advice)


def _starved(vitals: Vitals) -> Iterator[Finding]:
    norms = [block.weight_gradient for block in vitals.blocks]
    line = LIMITS.starved * median(norms)
    hungry = [number for number, norm in enumerate(norms, 1) if norm < line]
    if hungry:
        lowest = min(norms) / median(norms)
        what = f"{_blocks(hungry)} of {len(norms)} get next to no gradient: {lowest:.2g} of the median block's."
        rule = f"the gradient of a block's weights is at least {LIMITS.starved:g} of the median block's"
        advice = "Look for dead activations, frozen weights or a scale that has gone to zero there."
        yield Finding("blocks-starve", "warning", what, rule, lowest, LIMITS.starved, advice)


def _idle(vitals: Vitals, about: Circumstances) -> Iterator[Finding]:
    """Only blocks that the output does not miss are depth unused; those that matter together are named, and left alone."""
    if not vitals.idle or about.trained is False:  # quiet branches at the start are a design: ReZero, LayerScale, zero-initialised norms
        return
    share, design = len(vitals.idle) / len(vitals.blocks), about.design
    effect = "" if vitals.without_idle is None else f"; left out all together, they change the output by {100 * vitals.without_idle:.2g} %"
    what = f"{_blocks(vitals.idle)} of {len(vitals.blocks)} change what they are given by less than {100 * LIMITS.idle:g} %{effect}."
    spare = vitals.without_idle is not None and vitals.without_idle < LIMITS.spare
    many = spare and share > LIMITS.idle_share
    advice = "These blocks could be removed." if spare else "One by one they do little, but the network needs them together."
    if many:
        advice += " The depth is hardly used: spend it on width" + (", or on steps of growing width." if design.cut else ".")
    elif spare:
        advice += " So few are no reason to change."
    rule = f"‖z_l − z_(l−1)‖ / ‖z_(l−1)‖ is at least {LIMITS.idle:g} in {100 * (1 - LIMITS.idle_share):g} % of the blocks"
    change = dict(design.cut) if many else {}
    severity: Severity = "warning" if many else "note"
    yield Finding("depth-unused", severity, what, rule, share, LIMITS.idle_share, advice, change)


def _slices(vitals: Vitals) -> Iterator[Finding]:
    if not vitals.joins:
        return
    small = min(vitals.joins, key=lambda join: join.ratio)
    large = max(vitals.joins, key=lambda join: join.ratio)
    rule = f"RMS of the fresh slice over that of what it joins lies between {LIMITS.slice:g} and {1 / LIMITS.slice:g}"
    drowned = sum(join.ratio < LIMITS.slice for join in vitals.joins)
    if drowned:
        what = (
            f"The fresh slice is drowned at {drowned} of {len(vitals.joins)} joins: at {small.name} its {small.fresh} channels come in at "
            f"{small.ratio:.2g} of the size of the {small.width} that they join, and the next norm divides both by their common deviation."
        )
        severity: Severity = "severe" if small.ratio < LIMITS.slice_severe else "warning"
        yield Finding("slice-drowned", severity, what, rule, small.ratio, LIMITS.slice, *_match(small))
    if large.ratio > 1 / LIMITS.slice:
        what = f"At {large.name} the fresh slice is {large.ratio:.3g} times as large as what it joins: the steps before are hardly heard."
        yield Finding("steps-drowned", "warning", what, rule, large.ratio, 1 / LIMITS.slice, *_match(large))


def _match(join: JoinVitals) -> tuple[str, dict[str, str]]:
    """What to do about a slice that is out of proportion, and the change."""
    if "Matched" in join.kind:
        return "The join matches already: its learned gain has gone astray, or the slice is zero nearly everywhere.", {}
    return "Take matched joins, which scale the slice to what it joins; without parameters, at next to no cost.", {"join": "matched"}


def _width(vitals: Vitals) -> Iterator[Finding]:
    last = vitals.blocks[-1]
    if last.rank < LIMITS.rank and last.full_rank > 2 * LIMITS.rank:
        what = f"Width is not used: the last state varies along {last.rank:.2g} of {last.full_rank} directions (effective rank)."
        advice = "Read this together with the others: a few very large channels do it too, and then it is harmless."
        rule = f"the effective rank of the last state is at least {LIMITS.rank:g}"
        yield Finding("width-unused", "note", what, rule, last.rank, LIMITS.rank, advice)


def _overflow(vitals: Vitals, design: Design) -> Iterator[Finding]:
    number, block = max(enumerate(vitals.blocks, 1), key=lambda pair: pair[1].largest)
    if block.largest > LIMITS.half_precision:
        what = f"|z| reaches {block.largest:.3g} at block {number}: fp16 ends at 65504."
        advice = f"Train in bf16 or fp32, or {_quieten(design)}."
        rule = f"no state exceeds {LIMITS.half_precision:g}"
        yield Finding("near-overflow", "warning", what, rule, block.largest, LIMITS.half_precision, advice, _scaled(design))


def _blocks(numbers: Sequence[int]) -> str:
    """"Blocks 3–7, 12", runs drawn together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
    return f"{'Block' if len(numbers) == 1 else 'Blocks'} {words}"
