"""Writes the results of studies into README.md, docs/results/demo.md and docs/results/studies.

Run it with `python -m tools.evidence`.

The results are docs/results/evidence/STUDY-SIZE/results.jsonl, which `stepsnet study STUDY --size SIZE --out
docs/results/evidence` writes. The marks `<!-- study: STUDY SIZE PART … -->` and `<!-- end -->` enclose what is written:
`table`, `outcomes` or `search`. `<!-- doctor: STUDY-SIZE … -->` encloses the table of all these studies together, and
`<!-- joins: SIZE … -->` the gains of all joins. The figures that a page shows are saved beside the results.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

from stepsnet.files import replace_file
from stepsnet.report.table import Table
from stepsnet.research.studies.networks import JOINS
from stepsnet.research.studies.pages import arm_table
from stepsnet.research.studies.prediction import prediction_table
from stepsnet.research.studies.registered import get_study
from stepsnet.research.studies.results import NOT_MADE, Results, contrast
from stepsnet.research.studies.runner import StudyFiles, collect

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "docs/results/evidence"
PAGES = (ROOT / "README.md", ROOT / "docs/results/demo.md", *sorted((ROOT / "docs/results/studies").glob("*.md")))
COLUMNS = ("network", "blocks", "params", "MACs", "learning rate", "seeds", "validation loss", "γ late")
MARKED = re.compile(r"(<!-- study: (\w+) (\w+) ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DOCTORS = re.compile(r"(<!-- doctor: ([\w -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
GAINS = re.compile(r"(<!-- joins: ([\w ]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with the results between its marks."""

    def block(found: re.Match[str]) -> str:
        begin, study, size, parts, end = found.groups()
        place = StudyFiles(EVIDENCE, get_study(study), size)
        return begin + "\n\n".join(part_of(place, collect(place), part) for part in parts.split()) + f"\n{end}"

    def doctor(found: re.Match[str]) -> str:
        places = [StudyFiles(EVIDENCE, get_study(study), size) for study, size in re.findall(r"(\w+)-(\w+)", found[2])]
        tables = prediction_table(*((collect(place), place.study.equal_cost) for place in places))
        return found[1] + "\n\n".join(table.markdown() for table in tables) + f"\n{found[3]}"

    def gains(found: re.Match[str]) -> str:
        return f"{found[1]}{gains_table(found[2].split()).markdown()}\n{found[3]}"

    return GAINS.sub(gains, DOCTORS.sub(doctor, MARKED.sub(block, text)))


def part_of(place: StudyFiles, results: Results, part: str) -> str:
    """One part of a study's results in Markdown; networks without a finished run are left out."""
    size = place.chosen()
    if part == "table":
        tables = [columns_of(arm_table(results, setting), COLUMNS) for setting in size.settings()]
    elif part == "search":
        tables = [search_table(results)]
    else:
        outcomes = place.study.decide(results)
        made = [f"- {outcome}" for outcome in outcomes if outcome.verdict != NOT_MADE]
        waiting = len(outcomes) - len(made)
        return "\n".join([*made, *([f"- Not compared, because cells are missing: {waiting}"] if waiting else [])])
    return "\n\n".join(table.markdown() for table in tables if table.rows)


def gains_table(sizes: list[str]) -> Table:
    """How much lower than with plain joins the loss with each other join is, and the mean, by which `joins` chooses."""
    header, rows = ["join"], [[join] for name, join in JOINS.items() if name != "steps"]
    found: list[list[float]] = [[] for _ in rows]
    for size in sizes:
        results = collect(StudyFiles(EVIDENCE, get_study("joins"), size))
        (setting,) = results.size.settings()
        for blocks in sorted({arm.blocks for arm in results.size.arms}):
            header.append(f"{size}, {blocks} blocks")
            for row, gains in zip(rows, found, strict=True):
                better, worse = (f"{setting.key}-{name}-{blocks}" for name in (row[0], "steps"))
                gain = contrast(results, "", better=[better], worse=[worse])
                row.append(f"{gain.difference:+.3f} ± {gain.error:.3f}")
                gains.append(gain.difference)
    return Table([*header, "mean"], [[*row, f"{mean(gains):+.3f}"] for row, gains in zip(rows, found, strict=True)])


def columns_of(table: Table, titles: tuple[str, ...]) -> Table:
    """The table with these columns only, for networks with a finished run."""
    kept = [index for index, title in enumerate(table.titles) if title in titles]
    seeds = table.titles.index("seeds")
    rows = [[row[index] for index in kept] for row in table.rows if row[seeds] != "0"]
    return Table([table.columns[index] for index in kept], rows, table.title)


def search_table(results: Results) -> Table:
    """The validation loss of each arm that was searched, at each learning rate."""
    search = results.size.search
    assert search is not None
    rows = []
    for arm in dict.fromkeys(map(search.tuned_as, results.size.arms)):
        tries = [results.found.get(cell.id) for cell in search.cells(arm).values()]
        if any(tries):
            rows.append([arm.label, *(f"{found.loss:.3f}" if found and found.finished else "–" for found in tries)])
    return Table(["network", *(f"rate {rate:g}" for rate in search.rates)], rows)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        replace_file(page, filled(text).encode())
        for study, size, name in re.findall(r"evidence/(\w+)-(\w+)/([\w-]+)\.svg", text):
            place = StudyFiles(EVIDENCE, get_study(study), size)
            dict(place.study.draw(collect(place)))[name].save(place.folder / f"{name}.svg")


if __name__ == "__main__":
    main()
