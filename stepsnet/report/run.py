"""A run's report, from the files in its folder alone: written at its end, or at any time for a look at one that is still going."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.errors import UsageError
from stepsnet.files import read_json
from stepsnet.report.gamma import gamma_map
from stepsnet.report.html import figures, page, paragraph, preformatted, section, table, write
from stepsnet.report.palette import OTHER, TIMES, TRAINING, VALIDATION
from stepsnet.report.stack import stack_svg
from stepsnet.report.svg import Line, binned, line_chart, number
from stepsnet.runs.folder import ENVIRONMENT, EVALUATIONS, GAMMA, METRICS, REPORT, WEIGHTS, read_config, read_lines

if TYPE_CHECKING:
    from stepsnet.macro.plan import StepPlan

EARLY = 0.1  # the share of a run after which "early" is shown
SHOWN_EVALUATIONS = 20


def run_report(run_dir: Path) -> Path:
    """Write report.html into a run folder: curves, table, the stack's picture, γ over depth, configuration and environment."""
    run_dir = Path(run_dir)
    config, environment = read_config(run_dir), read_json(run_dir / ENVIRONMENT)
    steps, evaluations, gammas = (read_lines(run_dir / name) for name in (METRICS, EVALUATIONS, GAMMA))
    done = steps[-1]["step"] if steps else 0
    state = "finished" if (run_dir / WEIGHTS).is_file() else "unfinished"
    title = f"{config.get('recipe') or config.get('task')}: {config['model']}"
    plans = saved_plans(run_dir, config)
    lead = f"{state} at step {done:,}, seed {config['seed']}, join {config['join']}" + (f", plan {plans[1]}" if plans else "")
    sections = [
        section("Result", _result_table(steps, evaluations)),
        section("Curves", figures(*_curves(steps, evaluations))),
        section("The stack", stack_svg(plans[0]), paragraph(STACK_EXPLAINED)) if plans else "",
        section(
            "Shortcut ratio",
            figures(("γ over depth", gamma_chart(gammas)), ("γ over training and depth", _gamma_map(gammas, config))),
            paragraph(GAMMA_EXPLAINED) if gammas else "",
        ),
        section("Evaluations", _evaluation_table(evaluations)),
        section("Configuration", preformatted(json.dumps(config, indent=2, ensure_ascii=False))),
        section("Environment", preformatted(json.dumps(environment, indent=2, ensure_ascii=False)) if environment else ""),
    ]
    return write(run_dir / REPORT, page(title, lead, sections))


STACK_EXPLAINED = "One bar per step, as wide as the step. Dark: channels of the step before. Light: channels that join."
GAMMA_EXPLAINED = (
    "γ = σ(z_0)/σ(z_l): how much of the network's input is left in its full-width state after block l (1: all of it, 0: drowned), "
    "measured on the same validation samples each time. It depends on the initialisation and on the training step."
)


def gamma_chart(gammas: Sequence[dict[str, Any]], width: int = 560) -> str:
    """γ over depth at the start, early and at the end of what was recorded: the later, the darker."""
    if not gammas:
        return ""
    looks = {look["step"]: (look["gamma"], color) for look, color in zip((gammas[0], early_line(gammas), gammas[-1]), TIMES, strict=True)}
    lines = [Line(f"step {step:,}", range(1, len(gamma) + 1), gamma, color) for step, (gamma, color) in looks.items()]
    return line_chart(lines, title="γ over depth", x_label="block", y_label="γ", width=width, height=360, y_range=(0.0, 1.0))


def _gamma_map(gammas: Sequence[dict[str, Any]], config: dict[str, Any]) -> str:
    """The whole of it, where matplotlib is there to draw it."""
    drawn = gamma_map(gammas, config)
    if drawn is None:
        return ""
    from stepsnet.report.figures import figure_svg

    return figure_svg(drawn)


def early_line(gammas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The line recorded nearest to a tenth of the run so far, after the first."""
    return min(gammas[1:] or gammas, key=lambda line: abs(line["step"] - EARLY * gammas[-1]["step"]))


def _curves(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    def series(lines: Sequence[dict[str, Any]], key: str) -> tuple[list[float], list[float | None]]:
        known = [line for line in lines if key in line]
        return [line["step"] for line in known], [line[key] for line in known]

    losses = [Line("training loss", *binned(*series(steps, "loss")), TRAINING)]
    if any("loss" in line for line in evaluations):
        losses.append(Line("validation loss", *series(evaluations, "loss"), VALIDATION))
    charts = [("Loss", line_chart(losses, title="Loss", x_label="step", y_label="loss"))]
    metrics = dict.fromkeys(key for line in evaluations for key in line if key not in ("step", "loss"))
    if len(evaluations) > 1:
        for key in metrics:
            line = Line("", *series(evaluations, key), VALIDATION)
            charts.append((f"Validation: {key}", line_chart([line], title=key, x_label="step", y_label=key)))
    for key, caption in (("lr", "Learning rate"), ("grad_norm", "Gradient norm before clipping")):
        line = Line("", *binned(*series(steps, key)), OTHER)
        charts.append((caption, line_chart([line], title=caption, x_label="step", y_label=key, height=260)))
    return charts


def _result_table(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> str:
    if not steps:
        return ""
    tail = [line["loss"] for line in steps[-20:] if line["loss"] is not None]
    rows = [["training loss, mean of the last 20 steps", number(round(sum(tail) / len(tail), 4)) if tail else "not finite"]]
    if evaluations:
        rows += [[f"validation {key}", _shown(value)] for key, value in evaluations[-1].items() if key != "step"]
    unit = next((key for key in ("images", "tokens") if key in steps[-1]), None)
    seconds = sum(line.get("seconds", 0.0) for line in steps)
    if unit and seconds > 0:
        rows.append([f"{unit} per second", number(round(sum(line.get(unit, 0) for line in steps) / seconds))])
    rows.append(["training time", f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.0f} s"])
    return table(("", "value"), rows)


def _evaluation_table(evaluations: Sequence[dict[str, Any]]) -> str:
    if not evaluations:
        return ""
    keys = list(dict.fromkeys(key for line in evaluations for key in line))
    rows = [[_shown(line.get(key)) for key in keys] for line in evaluations[-SHOWN_EVALUATIONS:]]
    return table(keys, rows, left=())


def _shown(value: float | None) -> str:
    return "not finite" if value is None else number(round(value, 5))


def saved_plans(run_dir: Path, config: dict[str, Any]) -> tuple[list[StepPlan], str] | None:
    """The plans of the run's model, and their string: from the header of its weights, or, before there are any, from the configuration."""
    from stepsnet.macro.plan import StepPlan
    from stepsnet.models.files import read_header

    weights = run_dir / WEIGHTS
    plan = config.get("plan")
    if weights.is_file():
        plan = read_header(weights, ours=False).get("plan", plan)
    if not isinstance(plan, str):
        return None
    try:
        return [StepPlan.parse(stage) for stage in plan.split(";")], plan
    except UsageError:  # a number of steps, which only the model's family can resolve
        return None
