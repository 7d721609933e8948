"""What each step contributes (Table 7): blocks of like computation left out of trained Steps models, no retraining."""

from __future__ import annotations

from collections.abc import Iterator

from stepsnet.report.chart import BarChart
from stepsnet.report.table import Table
from stepsnet.research.studies.charts import Charts, seeds_in_words, spans_of
from stepsnet.research.studies.damaged import SIZES
from stepsnet.research.studies.results import Measured, Results, mean_and_error, spread
from stepsnet.research.studies.rules import RULE, Outcome, paired
from stepsnet.research.studies.study import Study

FIRST, SECOND, THIRD = 1, 2, 3  # after the whole network, which is row 0


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for arm in results.size.arms:
        for early, late in ((FIRST, THIRD), (FIRST, SECOND), (SECOND, THIRD)):

            def difference(cell: Measured, early: int = early, late: int = late) -> float:
                found = cell.probes["drops"]["loss"]["metric"]
                return float(found[early] - found[late])

            sentence = f"Dropping in step {early} hurts more than dropping as much in step {late} ({arm.setting.key})"
            outcomes.append(paired(results, sentence, arm.key, difference))
    return outcomes


def tables(results: Results) -> Iterator[Table]:
    for arm in results.size.arms:
        cells = [cell.probes["drops"] for cell in results.finished(arm)]
        if not cells:
            continue
        first = next(iter(cells[0].values()))
        rows = [
            [step, str(first["dropped"][at]), f"{100 * first['share'][at]:.1f} %",
             *(spread([cell[metric]["metric"][at] for cell in cells]) for metric in cells[0])]
            for at, step in enumerate(first["steps"])
        ]  # fmt: skip
        columns = ["step", "blocks dropped", "of all blocks' parameters", *cells[0]]
        yield Table(columns, rows, f"{arm.key}: the last blocks of one step left out")


def draw(results: Results) -> Charts:
    for arm in results.size.arms:
        cells = [cell.probes["drops"]["loss"] for cell in results.finished(arm)]
        if cells:
            found = [mean_and_error([cell["metric"][at] for cell in cells]) for at in range(len(cells[0]["metric"]))]
            dropped = zip(cells[0]["steps"], cells[0]["dropped"], strict=True)
            words = [f"{step}: {count} block{'s' * (count > 1)}" if count else step for step, count in dropped]
            yield f"{arm.setting.key}-drops", BarChart(
                labels=words, values=[centre for centre, _ in found], spans=spans_of(found),
                title=f"Like computation dropped in each step: {arm.setting.key}",
                x_label="validation loss (nats)",
                note=f"{arm.setting.about}; {arm.label}; mean over {seeds_in_words([len(cells)])}; no retraining",
            )


STUDY = Study(
    name="drops",
    title="What each step contributes",
    question="Does a trained StepsNet lose more when computation is taken from its narrow, early steps? (Table 7)",
    rule=f"{RULE} Here the difference is taken within each trained model.",
    sizes=SIZES,
    decide=decide,
    draw=draw,
    tables=tables,
    probes=("drops",),
)
