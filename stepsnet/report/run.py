"""Pages made from run folders alone: of one run, at any time, and of several runs side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.errors import UsageError
from stepsnet.files import read_json
from stepsnet.report.chart import Chart, HeatMap, Line, LineChart, StackChart
from stepsnet.report.html import collapsed, command, figures, page, paragraph, section, write
from stepsnet.report.mistakes import mistakes_section
from stepsnet.report.svg import OTHER, TIMES, TRAINING, VALIDATION, binned, known, number
from stepsnet.report.table import Column, Table
from stepsnet.runs import folder as files
from stepsnet.runs.folder import EVALUATIONS, GAMMA, METRICS, WEIGHTS, read_lines
from stepsnet.units import significant

if TYPE_CHECKING:
    from stepsnet.macro.plan import StepPlan

EARLY = 0.1  # the share of a run after which "early" is shown
SHOWN_EVALUATIONS = 20
GAMMA_MAP = "gamma.svg"

STACK_EXPLAINED = "One bar a step, as wide as the step. Dark: channels of the step before. Light: channels that join."
REVERSE_EXPLAINED = (
    "Macro reverse, from wide to narrow: one bar a step, as wide as the step. Dark: channels of the next step. Light: "
    "channels that leave."
)
GAMMA_EXPLAINED = (
    "γ = σ(z_0)/σ(z_l): the share of the input z_0 in the full-width state after block l. 1 means that the state has "
    "the size of the input, near 0 that the branches dominate it. It depends on the initialisation and on the training "
    "step."
)
ABOVE_ONE = (
    "γ above 1: σ(z_l) is smaller than σ(z_0). There the branches point against the input and cancel a part of it; γ "
    "is then a ratio of sizes, not a share."
)


def run_report(run_dir: Path) -> Path:
    """Write report.html into a run folder, and gamma.svg, the map of γ, where γ was recorded."""
    run_dir = Path(run_dir)
    config, environment = files.read_settings(run_dir), read_json(run_dir / files.ENVIRONMENT)
    steps, evaluations, gammas = (read_lines(run_dir / name) for name in (METRICS, EVALUATIONS, GAMMA))
    finished = (run_dir / WEIGHTS).is_file()
    plans = saved_plans(run_dir, config)
    done = f"{steps[-1]['step']:,}" if steps else "0"
    reverse = _is_reverse(config)
    lead = f"seed {config['seed']}, join {config['join']}" + (f", plan {plans[1]}" if plans else "")
    lead += ", macro reverse" if reverse else ""
    stacks = [StackChart(title="", plans=plans[0], reverse=reverse)] if plans else []
    heat_maps = [found] if (found := gamma_map(gammas, config)) else []
    for chart in heat_maps:
        chart.save(run_dir / GAMMA_MAP)
    words = ("eval", "doctor") if finished else ("resume",)
    sections = [
        section("Curves", figures(*_curves(steps, evaluations))),
        section("The stack", figures(*stacks), *_stack_words(stacks)) if plans else "",
        section("Shortcut ratio", figures(*gamma_chart(gammas), *heat_maps), *gamma_words(gammas)),
        section("Evaluations", _evaluation_table(evaluations).html()),
        mistakes_section(run_dir),
        section("Commands", *(command(f"stepsnet {word} {shlex.quote(str(run_dir))}") for word in words)),
        section("Details", collapsed("Configuration", json.dumps(config, indent=2, ensure_ascii=False)),
                collapsed("Environment", json.dumps(environment, indent=2, ensure_ascii=False) if environment else "")),
    ]  # fmt: skip
    title = f"{config.get('recipe') or config.get('task')}: {config['model']}"
    verdict = f"Finished after {done} step{'' if done == '1' else 's'}" if finished else f"Unfinished, at step {done}"
    color = "good" if finished else "warning"
    document = page(title, lead, sections, verdict=verdict, color=color, facts=_facts(steps, evaluations))
    return write(run_dir / files.REPORT, document)


def gamma_words(gammas: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paragraphs that explain γ, with one more where it exceeds 1."""
    above = any(value > 1.005 for line in gammas for value in line["gamma"] if known(value))
    return [paragraph(words) for words in (GAMMA_EXPLAINED, *([ABOVE_ONE] if above else []))] if gammas else []


def gamma_chart(gammas: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """γ over depth at the first, an early and the last record: the later, the more contrast."""
    if not gammas:
        return []
    shown = zip((gammas[0], early_line(gammas), gammas[-1]), TIMES, strict=True)
    looks = {line["step"]: (line["gamma"], color) for line, color in shown}
    lines = [Line(f"step {step:,}", range(1, len(gamma) + 1), gamma, color) for step, (gamma, color) in looks.items()]
    return [LineChart(title="γ over depth", lines=lines, x_label="block", y_label="γ", y_range=(0.0, 1.0))]


def gamma_map(gammas: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> HeatMap | None:
    """γ over training step and depth; None for fewer than two records."""
    if len(gammas) < 2:
        return None
    depth = range(1, len(gammas[0]["gamma"]) + 1)
    values = [[line["gamma"][block - 1] for line in gammas] for block in depth]
    highest = max((value for row in values for value in row if known(value)), default=1.0)
    own = (config.get("model_args") or {}).get("init", "own")
    init = "its own" if own == "own" else own
    words = (config["model"], f"join {config['join']}", f"initialisation: {init}", f"seed {config['seed']}")
    return HeatMap(
        title="γ over training and depth", note=", ".join(words) + "; on validation samples", values=values,
        x=[line["step"] for line in gammas], y=depth, x_label="step", y_label="block", scale_label="γ = σ(z₀)/σ(z_l)",
        limits=(0.0, max(1.0, highest)),
    )  # fmt: skip


def early_line(gammas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The record nearest to a tenth of the run so far, after the first."""
    return min(gammas[1:] or gammas, key=lambda line: abs(line["step"] - EARLY * gammas[-1]["step"]))


def _series(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float | None]]:
    found = [line for line in lines if key in line]
    return [line["step"] for line in found], [line[key] for line in found]


def _curves(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> list[Chart]:
    losses = [Line("training loss", *binned(*_series(steps, "loss")), TRAINING)]
    if any("loss" in line for line in evaluations):
        losses.append(Line("validation loss", *_series(evaluations, "loss"), VALIDATION))
    charts: list[Chart] = [LineChart(title="Loss", lines=losses, x_label="step", y_label="loss")]
    metrics = dict.fromkeys(key for line in evaluations for key in line if key not in ("step", "loss"))
    for key in metrics if len(evaluations) > 1 else ():
        line = Line("", *_series(evaluations, key), VALIDATION)
        charts.append(LineChart(title=f"Validation: {key}", lines=[line], x_label="step", y_label=key))
    for key, title in (("lr", "Learning rate"), ("grad_norm", "Gradient norm before clipping")):
        line = Line("", *binned(*_series(steps, key)), OTHER)
        charts.append(LineChart(title=title, lines=[line], x_label="step", y_label=key))
    return charts


def _facts(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The key numbers of a run."""
    if not steps:
        return []
    tail = [line["loss"] for line in steps[-20:] if line["loss"] is not None]
    last = evaluations[-1] if evaluations else {}
    facts = [(f"validation {key}", _shown(value)) for key, value in last.items() if key != "step"]
    facts.append(("training loss, last 20 steps", number(round(sum(tail) / len(tail), 4)) if tail else "not finite"))
    unit = next((key for key in ("images", "tokens") if key in steps[-1]), None)
    seconds = sum(line.get("seconds", 0.0) for line in steps)
    if unit and seconds > 0:
        facts.append((f"{unit} per second", number(round(sum(line.get(unit, 0) for line in steps) / seconds))))
    facts.append(("training time", f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{significant(seconds)} s"))
    return facts


def _evaluation_table(evaluations: Sequence[dict[str, Any]]) -> Table:
    keys = list(dict.fromkeys(key for line in evaluations for key in line))
    rows = [[_shown(line.get(key)) for key in keys] for line in evaluations[-SHOWN_EVALUATIONS:]]
    return Table([Column(key) for key in keys], rows)


def _shown(value: float | None) -> str:
    return "not finite" if value is None else number(round(value, 5))


def saved_plans(run_dir: Path, config: Mapping[str, Any]) -> tuple[list[StepPlan], str] | None:
    """The plans of the run's model and their string, from its weights if there are any, else from the configuration."""
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


@dataclass(frozen=True)
class Compared:
    """One network of a comparison: name, colour, run folder, its cells of the table."""

    label: str
    color: str
    run_dir: Path
    cells: Sequence[str]


def comparison_report(
    path: Path, title: str, lead: str, networks: Sequence[Compared], *, columns: Sequence[str | Column], metric: str,
    findings: Sequence[str] = (), remarks: Sequence[str] = (),
) -> Path:
    """Write the page: the first of `findings` is the verdict, `remarks` come last; `metric` is drawn over steps."""
    rows = [[network.label, *network.cells] for network in networks]
    table = Table(columns, rows, colors=[network.color for network in networks])
    recorded = [line for network in networks for line in read_lines(network.run_dir / GAMMA)]
    stacks = _stacks(networks)
    sections = [
        section("Result", *map(paragraph, findings[1:]), table.html()),
        section("Curves", figures(
            _together(networks, METRICS, "loss", "Training loss"),
            _together(networks, EVALUATIONS, metric, f"Validation: {metric}"))),
        section("Shortcut ratio over depth", figures(
            _gammas(networks, 0, "Before training"), _gammas(networks, 1, "Early"), _gammas(networks, -1, "Late")),
            *gamma_words(recorded)),
        section("The stacks", figures(*stacks), *_stack_words(stacks)),
        section("What this shows and what it does not", *map(paragraph, remarks)),
    ]  # fmt: skip
    return write(path, page(title, lead, sections, verdict=findings[0] if findings else ""))


def _together(networks: Sequence[Compared], file: str, key: str, title: str) -> Chart:
    lines = []
    for network in networks:
        x, y = binned(*_series(read_lines(network.run_dir / file), key), bins=60)
        lines.append(Line(network.label, x, y, network.color))
    return LineChart(title=title, lines=lines, x_label="step", y_label=key)


def _gammas(networks: Sequence[Compared], when: int, title: str) -> Chart:
    """γ of every network at the first (0), an early (1) or the last (-1) record."""
    lines = []
    for network in networks:
        recorded = read_lines(network.run_dir / GAMMA)
        if recorded:
            line = early_line(recorded) if when == 1 else recorded[when]
            depth = range(1, len(line["gamma"]) + 1)
            lines.append(Line(f"{network.label}, step {line['step']:,}", depth, line["gamma"], network.color))
    return LineChart(title=title, lines=lines, x_label="block", y_label="γ", width=330, y_range=(0.0, 1.0))


def _stacks(networks: Sequence[Compared]) -> list[StackChart]:
    """Each stack once, under the names of all networks that have it, all on one scale."""
    names: dict[tuple[str, bool], list[str]] = {}
    plans: dict[str, list[StepPlan]] = {}
    for network in networks:
        config = read_json(network.run_dir / files.CONFIG)
        if saved := saved_plans(network.run_dir, config):
            plans[saved[1]] = saved[0]
            names.setdefault((saved[1], _is_reverse(config)), []).append(network.label)
    widest = max((plan.width for stages in plans.values() for plan in stages), default=1)
    return [
        StackChart(title="; ".join(labels), note=text, plans=plans[text], widest=widest, reverse=reverse)
        for (text, reverse), labels in names.items()
    ]


def _is_reverse(config: Mapping[str, Any]) -> bool:
    return config.get("macro") == "reverse"


def _stack_words(stacks: Sequence[StackChart]) -> list[str]:
    """What the colours mean, for the directions that are drawn."""
    directions = sorted({stack.reverse for stack in stacks})
    return [paragraph(REVERSE_EXPLAINED if reverse else STACK_EXPLAINED) for reverse in directions]
