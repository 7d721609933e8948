"""The rules of the doctor, and the limits they compare measurements with. A finding prints the limit it exceeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, TypeAlias

from stepsnet.analysis.doctor.measure import BlockMeasurement, JoinMeasurement, Measurements, Traits

Severity: TypeAlias = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")

Advise: TypeAlias = Callable[[Mapping[str, str]], str]
"""From changes ({"join": "matched_grad"}) to the command or code that makes them in the model at hand."""


@dataclass(frozen=True)
class Limits:
    """All thresholds. Most are orders of magnitude: good and bad models usually differ by more than one."""

    gamma: float = 0.2
    """Median γ over depth; below, the shortcut counts as degraded. The paper's 122-layer DeiT, which trains well, has a
    mean of 0.5 (Sec. 3.1). In our short runs of 48 blocks, networks with a median of 0.05 to 0.18 learned less than
    others of equal cost with 0.6 and more (docs/results/demo.md, docs/results/studies/short.md). There are exceptions:
    hyper-connections with 0.07 beat plain joins with 0.58 (docs/results/studies/rivals.md; means)."""
    gamma_severe: float = 0.05
    """Less than 5 % of the normalised state is the input, as in the residual network whose 48 blocks gained nothing."""
    shallow: int = 16
    """Up to so many blocks a low γ is only a note: among networks of 6 and 12 blocks of equal cost, the one with this
    finding was usually the better one (docs/results/studies/doctor.md)."""
    update: float = 10.0
    """A block whose branch is ten times its input replaces the state instead of refining it. The first block may: it
    does so where embeddings start small, and those networks learned as well as others
    (docs/results/studies/doctor.md)."""
    gradient_span: float = 1e3
    """‖∂L/∂y‖ at the first block over that at the last, or the inverse. With one clip norm and one learning rate,
    blocks three orders of magnitude apart cannot both learn; models that train well stay within 20."""
    starved: float = 1e-4
    """A block whose weights get less than this share of the median block's gradient is not trained."""
    idle: float = 0.01
    """A trained block that changes its input by less than 1 % has almost no effect."""
    idle_share: float = 0.25
    """With more than a quarter of such blocks, the depth is not used. Fewer are only reported."""
    spare: float = 0.05
    """Blocks can be removed if the output changes by less than 5 % without all of them. Ten blocks of 1 % each may make
    a fifth of the output, as in the residual network with LayerScale of `fixed_width`, quick, after 200 steps."""
    slice: float = 0.1
    """RMS of the new channels over that of the channels they join. The next norm divides both by their common
    deviation, so the new channels enter the step ten times weaker (Eq. 2 at the join); or, above 10, the earlier steps
    do. In the runs of docs/results/studies/short.md, seed 0, plain joins reach 0.08 at 12 blocks and 0.006 at 48, where
    their loss is higher than that of the residual network."""
    slice_severe: float = 0.03
    rank: float = 2.0
    """Effective rank of the last state; below 2, almost all positions differ in one direction only."""
    half_precision: float = 65504.0 / 4
    """A quarter of the largest fp16 number."""
    window: float = 0.1
    """The share of a run over which the first and the last loss are averaged."""
    fewest_steps: int = 30
    """The curves of shorter runs are not checked."""
    fall: float = 0.02
    """A loss that falls by less than 2 % counts as not falling."""
    rise: float = 1.2
    """A loss that ends 20 % above its lowest average counts as rising."""
    spike: float = 10.0
    """A gradient norm of ten times the median of the 50 before it."""
    clipped: float = 10.0
    """With a median gradient norm of ten times the clip norm, clipping determines the step size."""
    overfit: float = 1.1
    """A validation loss that ends 10 % above its lowest."""


LIMITS = Limits()


@dataclass(frozen=True)
class Finding:
    """A problem: `what` with its number, the `rule` it breaks (`value` against `limit`), and what to change."""

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
    """The command or code that makes the change in the model at hand."""


@dataclass(frozen=True)
class Context:
    """What the rules need besides the measurements."""

    traits: Traits
    trained: bool | None
    weights: str
    """Initialisation and training step, in words."""
    clip: float = 0.0
    """The norm to which its training clips gradients; 0: no clipping."""


def advise_in_python(changes: Mapping[str, str]) -> str:
    """The code for a model that has no registered name."""
    lines = {
        "plan": 'stepsnet.StepsNet(steps=[F1, F2, F3], widths=[C // 2, round(C / 2**0.5), C], join="matched_grad")',
        "join": 'stepsnet.StepsNet(steps, widths, join="matched_grad")',
        "residual": "x + scale * branch(norm(x)), scale = nn.Parameter(torch.full((C,), 1e-5))",
        "clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "lr": "a lower learning rate, or a longer warm-up",
    }
    return next((line for key, line in lines.items() if key in changes), "")


def check(measured: Measurements, context: Context) -> list[Finding]:
    """All findings, most severe first. A state that is not finite is the only finding."""
    broken = list(_not_finite(measured.blocks))
    found = broken or [
        *_shortcut(measured, context), *_replaced(measured, context.traits), *_gradients(measured, context),
        *_no_weight_gradient(measured), *_idle(measured, context), *_join_sizes(measured), *_width(measured),
        *_overflow(measured, context.traits),
    ]  # fmt: skip
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _not_finite(blocks: Sequence[BlockMeasurement]) -> Iterator[Finding]:
    """The first block whose state is not finite; or the last whose gradient is not, the first on the way back."""
    numbered = list(enumerate(blocks, 1))
    states = [number for number, block in numbered if not (math.isfinite(block.sigma) and math.isfinite(block.largest))]
    gradients = [number for number, block in numbered if not math.isfinite(block.state_gradient)]
    if states or gradients:
        number, which = (states[0], "state") if states else (gradients[-1], "gradient")
        what = f"The {which} is not finite at block {number} of {len(blocks)} ({blocks[number - 1].name})."
        advice = "Restart from finite weights with a lower learning rate, gradient clipping or smaller branches."
        rule = "every state and gradient is finite"
        yield Finding("not-finite", "severe", what, rule, number, 0, advice, {"lr": ""})


def shortcut_finding(gamma: Sequence[float], traits: Traits, when: str) -> Finding | None:
    """Sec. 3.1: the branches dominate the shortcut."""
    known = [value for value in gamma if math.isfinite(value)]  # a state with equal channels has no γ
    if not known or (middle := median(known)) >= LIMITS.gamma:
        return None
    severe, shallow = middle < LIMITS.gamma_severe, len(gamma) <= LIMITS.shallow
    severity: Severity = "note" if shallow else "severe" if severe else "warning"
    first = next(number for number, value in enumerate(gamma, 1) if value < LIMITS.gamma)
    what = (
        f"The shortcut degrades: γ = σ(z_0)/σ(z_l) falls below {LIMITS.gamma:g} at block {first} of {len(gamma)}, has "
        f"a median of {middle:.3g} and ends at {gamma[-1]:.3g} ({when}). Later blocks see little of the input (Eq. 2)."
    )
    if traits.steps:
        advice = f"The wide steps dominate it: move blocks to the narrow steps, or {_smaller_branches(traits)}."
    elif traits.cut:
        advice = ("Cut the stack into steps of growing width, which leave most channels unchanged at first (Eq. 5), "
                  f"or {_smaller_branches(traits)}.")  # fmt: skip
    else:
        advice = f"Its widths allow no three steps; {_smaller_branches(traits)} instead."
    if shallow:
        advice += f" With {len(gamma)} blocks this may be harmless: networks of this depth have learned well with it."
    rule = f"median γ over depth is at least {LIMITS.gamma:g} (severe: below {LIMITS.gamma_severe:g})"
    change = dict(traits.cut) or _layerscale(traits)
    return Finding("shortcut-degrades", severity, what, rule, middle, LIMITS.gamma, advice, change)


def _shortcut(measured: Measurements, context: Context) -> Iterator[Finding]:
    found = shortcut_finding([block.gamma for block in measured.blocks], context.traits, context.weights)
    if found is not None:
        early = context.trained is False and found.severity == "severe"  # small embeddings lower γ at first; they grow
        yield replace(found, severity="warning") if early else found


def _smaller_branches(traits: Traits) -> str:
    if not traits.scales:
        return "start with small branches (LayerScale)"
    if traits.small:
        return "lower the learning rate of the branch scales"
    return "start the branch scales lower, or lower their learning rate"


def _layerscale(traits: Traits) -> dict[str, str]:
    """The change to LayerScale, for models without branch scales."""
    return {} if traits.scales else {"residual": "layerscale"}


def _replaced(measured: Measurements, traits: Traits) -> Iterator[Finding]:
    large = [(block.update, number) for number, block in enumerate(measured.blocks[1:], 2)]
    update, number = max(large, default=(0.0, 0))
    if update <= LIMITS.update:
        return
    block = measured.blocks[number - 1]
    where = f"Block {number} of {len(measured.blocks)} ({block.name})"
    what = f"{where} adds {block.update:.3g} times its input: it replaces the state."
    advice = (f"Divide the initial weights of each branch's last layer by √(2 × blocks), as GPT-2 does, or "
              f"{_smaller_branches(traits)}.")  # fmt: skip
    rule = f"‖z_l − z_(l−1)‖ / ‖z_(l−1)‖ stays below {LIMITS.update:g} after the first block"
    yield Finding("state-replaced", "warning", what, rule, block.update, LIMITS.update, advice, _layerscale(traits))


def _gradients(measured: Measurements, context: Context) -> Iterator[Finding]:
    traits, norms = context.traits, [block.state_gradient for block in measured.blocks]
    if not any(norms):
        yield _no_gradient(context.trained)
    if norms[-1] == 0:
        return  # there is no ratio
    limit = LIMITS.gradient_span
    span = norms[0] / norms[-1]
    rule = f"‖∂L/∂y‖ at the first and the last block are within a factor of {limit:g}"
    if span < 1 / limit:
        lost = max(number for number, norm in enumerate(norms, 1) if norm * limit < norms[-1])
        what = (f"Gradients vanish: ‖∂L/∂y‖ at the first block is {span:.2g} of that at the last; it is below a "
                f"thousandth up to block {lost}.")  # fmt: skip
        advice = "Make every block z + R(norm(z)), with the norm inside the branch: then the shortcut passes gradients."
        if traits.cut:
            advice += " If it is so already, cut the stack into steps."
        change = dict(traits.cut) or _layerscale(traits)
        yield Finding("gradients-vanish", "severe", what, rule, span, 1 / limit, advice, change)
    elif span > limit:
        what = f"Gradients explode: ‖∂L/∂y‖ at the first block is {span:.2g} times that at the last."
        besides, change = ("clip gradients", {"clip": "1.0"})
        if context.clip:
            besides, change = "lower the learning rate", {"lr": ""}
        advice = (f"Give the last layers of the branches smaller initial weights or {_smaller_branches(traits)}, and "
                  f"{besides}.")  # fmt: skip
        yield Finding("gradients-explode", "severe", what, rule, span, limit, advice, _layerscale(traits) or change)


def _no_gradient(trained: bool | None) -> Finding:
    """A note before training, where a head of zeros may be intended; later a warning, because no block learns."""
    rule = "‖∂L/∂y‖ at the last block is above 0"
    if trained is False:
        what = "The head passes no gradient back, as with zero weights: the gradients of the blocks are unknown."
        advice = "Before training, a head of zeros may be intended (timm's MLP-Mixer): measure again after a few steps."
        return Finding("no-gradient", "note", what, rule, 0.0, 0.0, advice)
    what = "No block gets a gradient: with these weights and this loss none of them learns."
    advice = "Look behind the last block for a head of zeros, a dead activation, a detached state or a constant loss."
    return Finding("no-gradient", "warning", what, rule, 0.0, 0.0, advice)


def _no_weight_gradient(measured: Measurements) -> Iterator[Finding]:
    norms = [block.weight_gradient for block in measured.blocks]
    limit = LIMITS.starved * median(norms)
    low = [number for number, norm in enumerate(norms, 1) if norm < limit]
    if low:
        lowest = min(norms) / median(norms)
        verb = "gets" if len(low) == 1 else "get"
        what = f"{_blocks(low)} of {len(norms)} {verb} almost no gradient: {lowest:.2g} of the median block's."
        rule = f"the gradient of a block's weights is at least {LIMITS.starved:g} of the median block's"
        advice = "Look there for dead activations, frozen weights or a branch scale of zero."
        yield Finding("blocks-without-gradient", "warning", what, rule, lowest, LIMITS.starved, advice)


def _idle(measured: Measurements, context: Context) -> Iterator[Finding]:
    """Depth is unused only if the output hardly changes without these blocks; else they are only reported."""
    if not measured.idle or context.trained is False:  # ReZero, LayerScale and zero-initialised norms start small
        return
    share, traits, without = len(measured.idle) / len(measured.blocks), context.traits, measured.without_idle
    one = len(measured.idle) == 1
    them = "it" if one else "all of them"
    effect = "" if without is None else f"; without {them} the output changes by {100 * without:.2g} %"
    inputs = "changes its input" if one else "change their inputs"
    limit = f"less than {100 * LIMITS.idle:g} %"
    what = f"{_blocks(measured.idle)} of {len(measured.blocks)} {inputs} by {limit}{effect}."
    spare = without is not None and without < LIMITS.spare
    many = spare and share > LIMITS.idle_share
    advice = "These blocks could be removed." if spare else "Each has little effect; the network needs them together."
    if many:
        steps = ", or steps of growing width" if traits.cut else ""
        advice += f" The depth is hardly used: use width instead{steps}."
    elif spare:
        advice += " So few need no change."
    most = f"{100 * (1 - LIMITS.idle_share):g} % of the blocks"
    rule = f"‖z_l − z_(l−1)‖ / ‖z_(l−1)‖ is at least {LIMITS.idle:g} in {most}"
    severity: Severity = "warning" if many else "note"
    change = dict(traits.cut) if many else {}
    yield Finding("depth-unused", severity, what, rule, share, LIMITS.idle_share, advice, change)


def _join_sizes(measured: Measurements) -> Iterator[Finding]:
    joins = measured.joins
    if not joins:
        return
    small, large = min(joins, key=lambda join: join.ratio), max(joins, key=lambda join: join.ratio)
    within = f"between {LIMITS.slice:g} and {1 / LIMITS.slice:g}"
    rule = f"RMS of the new channels over that of the channels they join is {within}"
    too_small = sum(join.ratio < LIMITS.slice for join in joins)
    if too_small:
        what = (
            f"The new channels are too small at {too_small} of {len(joins)} joins: at {small.name} the RMS of the "
            f"{small.fresh} new channels is {small.ratio:.2g} of that of the {small.width} they join, and the next "
            "norm divides both by their common deviation."
        )
        severity: Severity = "severe" if small.ratio < LIMITS.slice_severe else "warning"
        yield Finding("new-channels-too-small", severity, what, rule, small.ratio, LIMITS.slice, *_match(small))
    if large.ratio > 1 / LIMITS.slice:
        what = (f"At {large.name} the RMS of the new channels is {large.ratio:.3g} times that of the channels they "
                "join: the steps before have little effect.")  # fmt: skip
        yield Finding("new-channels-too-large", "warning", what, rule, large.ratio, 1 / LIMITS.slice, *_match(large))


def _match(join: JoinMeasurement) -> tuple[str, dict[str, str]]:
    """Advice and change for a join of unequal sizes."""
    if "Matched" in join.kind:
        return "The join is matched already: most of the new channels are zero, or it scales them once more.", {}
    advice = "Use matched joins, which scale the new channels to those they join without parameters, at little cost."
    return advice, {"join": "matched_grad"}


def _width(measured: Measurements) -> Iterator[Finding]:
    last = measured.blocks[-1]
    if last.rank < LIMITS.rank and last.full_rank > 2 * LIMITS.rank:
        directions = f"{last.rank:.2g} of {last.full_rank} directions (effective rank)"
        what = f"Width is not used: the last state varies along {directions}."
        advice = "Consider it with the other findings: a few very large channels cause it too, and are harmless."
        rule = f"the effective rank of the last state is at least {LIMITS.rank:g}"
        yield Finding("width-unused", "note", what, rule, last.rank, LIMITS.rank, advice)


def _overflow(measured: Measurements, traits: Traits) -> Iterator[Finding]:
    number, block = max(enumerate(measured.blocks, 1), key=lambda pair: pair[1].largest)
    if block.largest > LIMITS.half_precision:
        what = f"|z| reaches {block.largest:.3g} at block {number}; the largest fp16 number is 65504."
        advice = f"Train in bf16 or fp32, or {_smaller_branches(traits)}."
        rule = f"no state exceeds {LIMITS.half_precision:g}"
        limit = LIMITS.half_precision
        yield Finding("near-overflow", "warning", what, rule, block.largest, limit, advice, _layerscale(traits))


def _blocks(numbers: Sequence[int]) -> str:
    """"Block 3", "Blocks 3–7, 12"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
    return f"{'Block' if len(numbers) == 1 else 'Blocks'} {words}"
