"""The rules for a run's files: losses, gradient norms, and γ as it was recorded during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from stepsnet.analysis.doctor.measure import Traits
from stepsnet.analysis.doctor.rules import LIMITS, Finding, Severity, shortcut_finding

Lines = Sequence[Mapping[str, Any]]
BEFORE = 50  # steps whose median a gradient norm is compared with
EARLIER = "shortcut-degraded-earlier"


def check_curves(metrics: Lines, evaluations: Lines, gammas: Lines, *, clip: float, traits: Traits) -> list[Finding]:
    """Findings from metrics.jsonl, eval.jsonl and gamma.jsonl, where None stands for a value that was not finite."""
    return [
        *_not_finite(metrics), *_losses(metrics), *_norms(metrics, clip), *_overfitted(evaluations),
        *_recorded(gammas, traits),
    ]  # fmt: skip


def _not_finite(metrics: Lines) -> Iterator[Finding]:
    bad = [line["step"] for line in metrics if line.get("loss") is None or line.get("grad_norm", 0.0) is None]
    if bad:
        what = f"Loss or gradient was not finite at {len(bad)} of {len(metrics)} steps, first at step {bad[0]:,}."
        advice = "Lower the learning rate, warm up longer, clip gradients; with fp16, try bf16."
        rule = "every loss and gradient norm is finite"
        yield Finding("training-not-finite", "severe", what, rule, len(bad), 0, advice, {"lr": ""})


def _losses(metrics: Lines) -> Iterator[Finding]:
    losses = [float(line["loss"]) for line in metrics if line.get("loss") is not None]
    if len(losses) < LIMITS.fewest_steps:
        return
    size = max(1, int(len(losses) * LIMITS.window))
    means = [fmean(losses[start : start + size]) for start in range(0, len(losses) - size + 1, size)]
    first, last, lowest = means[0], means[-1], min(means)
    if last > (1 - LIMITS.fall) * first:
        what = (f"The training loss does not fall: its mean is {first:.4g} over the first {size} of {len(losses)} "
                f"steps and {last:.4g} over the last {size}.")  # fmt: skip
        rule = f"the loss falls by at least {100 * LIMITS.fall:g} %"
        advice = "Try learning rates three times higher and three times lower; check that the labels can be learned."
        yield Finding("loss-not-falling", "severe", what, rule, last / first, 1 - LIMITS.fall, advice, {"lr": ""})
    elif lowest > 0 and last > LIMITS.rise * lowest:
        what = f"The training loss rises: from {lowest:.4g} at its lowest to {last:.4g} over the last {size} steps."
        rule = f"the loss ends within {100 * (LIMITS.rise - 1):.0f} % of its lowest average"
        advice = "Lower the learning rate or clip gradients."
        yield Finding("loss-rising", "warning", what, rule, last / lowest, LIMITS.rise, advice, {"lr": ""})


def _norms(metrics: Lines, clip: float) -> Iterator[Finding]:
    known = [(int(line["step"]), float(line["grad_norm"])) for line in metrics if line.get("grad_norm") is not None]
    norms = [norm for _, norm in known]
    if len(norms) < LIMITS.fewest_steps:
        return
    spikes = []
    for index, (step, norm) in enumerate(known[BEFORE // 5 :], start=BEFORE // 5):
        usual = median(norms[max(0, index - BEFORE) : index])
        if usual > 0 and norm > LIMITS.spike * usual:
            spikes.append((step, norm / usual))
    if spikes:
        step, size = max(spikes, key=lambda spike: spike[1])
        times = "once" if len(spikes) == 1 else f"{len(spikes)} times"
        what = f"The gradient norm spikes {times}, to {size:.3g} times the median of the steps before (step {step:,})."
        rule = f"the gradient norm stays below {LIMITS.spike:g} times the median of the {BEFORE} steps before"
        advice = "Warm up longer or lower the learning rate" + ("." if clip else ", or clip gradients.")
        severity: Severity = "warning" if len(spikes) > 0.01 * len(norms) else "note"
        change = {"lr": ""} if clip else {"clip": "1.0"}
        yield Finding("gradient-spikes", severity, what, rule, size, LIMITS.spike, advice, change)
    if clip and median(norms) > LIMITS.clipped * clip:
        ratio = median(norms) / clip
        what = (f"Clipping at {clip:g} divides the median step by {ratio:.3g}: the median gradient norm is "
                f"{median(norms):.3g}.")  # fmt: skip
        rule = f"the median gradient norm stays below {LIMITS.clipped:g} times the clip norm"
        advice = "Raise the clip norm, or lower the learning rate instead."
        yield Finding("clipping-dominates", "note", what, rule, ratio, LIMITS.clipped, advice)


def _overfitted(evaluations: Lines) -> Iterator[Finding]:
    losses = [(int(line["step"]), float(line["loss"])) for line in evaluations if line.get("loss") is not None]
    if len(losses) < 2:
        return
    step, lowest = min(losses, key=lambda pair: pair[1])
    last = losses[-1][1]
    if lowest > 0 and last > LIMITS.overfit * lowest:
        what = f"The validation loss is lowest at step {step:,} ({lowest:.4g}) and ends at {last:.4g}."
        rule = f"the validation loss ends within {100 * (LIMITS.overfit - 1):.0f} % of its lowest"
        advice = "Stop earlier, or regularise: drop path, augmentation."
        yield Finding("validation-rises", "note", what, rule, last / lowest, LIMITS.overfit, advice)


def _recorded(gammas: Lines, traits: Traits) -> Iterator[Finding]:
    """The lowest γ before the last record, even if it has recovered: early training matters most."""
    looks = {int(line["step"]): [value for value in line["gamma"] if value is not None] for line in gammas[:-1]}
    known = {step: values for step, values in looks.items() if values}
    if known:
        step, worst = min(known.items(), key=lambda look: median(look[1]))
        found = shortcut_finding(worst, traits, f"lowest, at step {step:,}")
        if found is not None:
            yield replace(found, name=EARLIER)
