"""Measures every figure of docs/results/performance.md and writes it into the page.

    python -m stepsnet.research.bench.performance run FOLDER [--only 'timm_*'] [--prefix "nice -n -5"]
    python -m stepsnet.research.bench.performance write FOLDER
    python -m stepsnet.research.bench.performance goals FOLDER
    python -m stepsnet.research.bench.performance list

`run` makes one folder per command (result.json, figures and a page) and skips finished ones, so it can be stopped and
continued. `write` needs a source checkout: it fills the pages between the marks `<!-- bench: NAME … -->` and
`<!-- end -->` with tables, commands and machine, and copies the figures. `<!-- goals: AVX2 -->` is filled only from
results of a machine with these instructions, so each instruction set keeps its own table of goals. `goals` fills only
these: the other tables keep the machine that they name.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepsnet.cpu import has_bf16
from stepsnet.files import read_json, write_json
from stepsnet.report.bench import machine_line, tables_of
from stepsnet.report.table import Table
from stepsnet.research.bench.checks import BUILD_SECONDS
from stepsnet.research.bench.timing import describe_machine

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "docs" / "results" / "performance"
PAGES = (FIGURES.with_suffix(".md"), FIGURES / "tables.md")
CHECKS = "python -m stepsnet.research.bench.checks"
SPEED, BOTH = "stepsnet bench speed", "--mode inference training"
EXPORTED = "deit_tiny steps_deit_tiny swin_tiny steps_swin_tiny"
FIGURE_6A = " ".join(
    f"{name} steps_{name}"
    for name in ("resnet18", "resnet34", "resnet50", "deit_tiny", "deit_small", "swin_tiny", "swin_small")
)
COMMANDS = {
    "timm_deit": f"{SPEED} deit_tiny deit_small --against timm --batch 8 {BOTH} --rounds 15",
    "timm_resnet": f"{SPEED} resnet18 resnet50 --against timm --batch 8 {BOTH} --rounds 15",
    "timm_resnet_folded": f"{SPEED} resnet18 resnet50 --against timm --fold --batch 8 --rounds 7",
    "timm_resnet_alike": f"{SPEED} resnet18 resnet50 --against timm --channels-last --alike --batch 8 --rounds 7",
    "timm_swin": f"{SPEED} swin_tiny --against timm --batch 8 {BOTH} --rounds 15",
    "baseline_deit": f"{SPEED} steps_deit_tiny steps_deit_small --against baseline --batch 8 {BOTH} --rounds 7",
    "baseline_swin": f"{SPEED} steps_swin_tiny --against baseline --batch 8 {BOTH} --rounds 7",
    "deep_swin": f"{SPEED} steps_swin_deep_d96 --against baseline --batch 8 {BOTH} --rounds 7",
    "deep_table5b": "stepsnet bench depth --table 5b --batch 8 --rounds 7",
    "memory": "stepsnet bench memory swin_deep_d96 steps_swin_deep_d96 --batch 32 64",
    "figure6a": f"{SPEED} {FIGURE_6A} --batch 8 --rounds 7",
    "bf16": f"{SPEED} deit_small swin_tiny --against eager --dtype bf16 --batch 8 --rounds 7",
    "compiled": f"{SPEED} swin_tiny --against timm --compile --batch 8 --rounds 7",
    "exported": f"{SPEED} swin_tiny deit_small --against timm onnxruntime openvino --batch 8 --rounds 7",
    "exported_steps": f"{SPEED} {EXPORTED} --against openvino --batch 8 --rounds 7",
    "exported_folded": f"{SPEED} resnet50 --against timm onnxruntime openvino --fold --batch 8 --rounds 7",
    "growth": "stepsnet bench depth deit_tiny steps_deit_tiny --batch 4 --rounds 7",
    "construction": f"{CHECKS} construction --rounds 7",
}
PRINTS = {  # commands whose result is their output
    "compile_time": f"{CHECKS} compile --families deit",
    "where_time_goes": f"{CHECKS} parts",
}
SHOWN = {  # figures of the page: folder of the command, file
    "figure6a_throughput": ("figure6a", "accuracy_inference_8_fp32.svg"),
    "figure6a_cost": ("figure6a", "macs_inference_8_fp32.svg"),
    "figure6c": ("deep_table5b", "throughput_inference.svg"),
    "figure6d": ("deep_table5b", "memory.svg"),
    "time_depth": ("growth", "time_depth_inference.svg"),
    "time_width": ("growth", "time_width_inference.svg"),
}


@dataclass(frozen=True)
class Goal:
    """The lower quartile of a speed ratio, in the worst case of the named commands; `contender` is a label pattern."""

    what: str
    commands: str
    at_least: float
    mode: str = "*"
    model: str = "*"
    contender: str = "stepsnet*"
    per_mac: bool = False
    best: bool = False
    """Take the best contender instead of the worst."""


GOALS = (
    Goal("DeiT against timm", "timm_deit", 0.97),
    Goal("ResNet against timm, inference", "timm_resnet", 0.97, mode="inference"),
    Goal("ResNet against timm, inference, batch norms folded", "timm_resnet_folded", 1.1),
    Goal("ResNet against timm, training", "timm_resnet", 0.97, mode="training"),
    Goal("Swin against timm, inference", "timm_swin", 0.97, mode="inference"),
    Goal("Swin against timm, training", "timm_swin", 0.97, mode="training"),
    Goal("Swin-T compiled or exported, the best, against timm's eager", "compiled|exported", 1.4, "inference",
         "swin_tiny", "*", best=True),
    Goal("Steps-DeiT-T, -S against baseline, per MAC", "baseline_deit", 0.95, per_mac=True),
    Goal("Steps-Swin-T against baseline, per MAC", "baseline_swin", 0.95, per_mac=True),
    Goal("Steps-Swin of 96 blocks against residual Swin of 96, inference", "deep_swin", 1.15, mode="inference"),
    Goal("Steps-Swin of 96 blocks against residual Swin of 96, training", "deep_swin", 1.15, mode="training"),
    Goal("bf16 against fp32, DeiT-S and Swin-T, inference", "bf16", 1.4),
)
SAVED_RATIO = 1 / 1.3


def goals_table(documents: Mapping[str, Mapping[str, Any]]) -> Table:
    """Every goal, measured on one instruction set."""
    rows = [_row(goal, documents) for goal in GOALS]
    if "memory" in documents:
        saved = {row["model"]: row["saved_per_input"] for row in documents["memory"]["rows"]}
        ratio = saved["steps_swin_deep_d96"] / saved["swin_deep_d96"]
        what = "bytes saved for backward, Steps-Swin over residual Swin, 96 blocks"
        rows.append([what, f"≤ {SAVED_RATIO:.2f}", f"{ratio:.2f}", "", _mark(ratio <= SAVED_RATIO)])
    if "construction" in documents:
        slowest = max(row["make"]["median"] for row in documents["construction"]["rows"])
        met = _mark(slowest < BUILD_SECONDS)
        rows.append(["building a 482-layer network, seconds", f"< {BUILD_SECONDS}", f"{slowest:.2f}", "", met])
    return Table(("what", "goal", "measured", "median", "met"), rows, "Goals")


def instruction_set(machine: Mapping[str, Any]) -> str:
    """AVX2, AVX512 …, with the bf16 instructions if there are some."""
    return "+".join([machine["instructions"], *machine["bf16_instructions"]])


def _row(goal: Goal, documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = list(_ratios(goal, documents))
    if not found:
        return [goal.what, f"≥ {goal.at_least:.2f}", "not measured", "", ""]
    lower, median = max(found) if goal.best else min(found)
    return [goal.what, f"≥ {goal.at_least:.2f}", f"{lower:.2f}", f"{median:.2f}", _mark(lower >= goal.at_least)]


def _ratios(goal: Goal, documents: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """Lower quartile and median of every case that the goal is about."""
    for name, document in documents.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in goal.commands.split("|")):
            continue
        for case in document["cases"]:
            if fnmatch.fnmatch(case["mode"], goal.mode) and fnmatch.fnmatch(case["model"] or "", goal.model):
                for one in case["contenders"][1:]:
                    if fnmatch.fnmatch(one["label"], goal.contender):
                        ratio = one["ratio_per_mac" if goal.per_mac else "ratio"]
                        yield ratio["lower"], ratio["median"]


def _mark(met: bool) -> str:
    return "yes" if met else "no"


def run(folder: Path, only: str, prefix: Sequence[str]) -> int:
    """Run the commands one after the other; print those that failed at the end."""
    failed = []
    began = time.perf_counter()
    for name, command in (COMMANDS | PRINTS).items():
        if not fnmatch.fnmatch(name, only) or (folder / name / "result.json").is_file():
            continue
        if name == "bf16" and not has_bf16():  # it would measure fp32
            continue
        program, *words = shlex.split(command)
        start = [sys.executable, "-m", "stepsnet"] if program == "stepsnet" else [sys.executable]
        print(f"{time.perf_counter() - began:5.0f} s  {name}: {command}", flush=True)
        out = ["--out", str(folder / name)] if name in COMMANDS else []
        done = subprocess.run([*prefix, *start, *words, *out], stdout=subprocess.PIPE, text=True, check=False)
        if name in PRINTS and done.stdout:
            _keep(folder / name, command, done.stdout)
        if not (folder / name / "result.json").is_file():
            failed.append(name)
    print(f"{time.perf_counter() - began:5.0f} s  done" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _keep(folder: Path, command: str, printed: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = printed.splitlines()
    document = {"benchmark": "printed", "command": command, "machine": describe_machine(), "lines": lines}
    write_json(folder / "result.json", document)


def write(folder: Path, *, goals_only: bool = False) -> int:
    """Fill the pages, or only their goals, from the results in `folder`; a mark without results says so."""
    results = sorted(folder.glob("*/result.json"))
    documents = {path.parent.name: read_json(path) for path in results}
    if not documents:
        command = f"python -m stepsnet.research.bench.performance run {folder}"
        print(f"{folder} has no results; `{command}` measures them", file=sys.stderr)
        return 1
    by_set: dict[str, dict[str, Mapping[str, Any]]] = {}  # a run can be continued on another machine
    for name, document in documents.items():
        by_set.setdefault(instruction_set(document["machine"]), {})[name] = document
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = _fill(text, f"goals: ({'|'.join(map(re.escape, by_set))})",
                     lambda found: goals_table(by_set[found]).markdown())
        if not goals_only:
            text = _fill(text, "bench: ([^>]*?)", lambda names: _block(names.split(), documents))
        page.write_text(text, encoding="utf-8")
    if goals_only:
        return 0
    FIGURES.mkdir(exist_ok=True)
    for name, (source, figure) in SHOWN.items():
        if (folder / source / figure).is_file():
            shutil.copyfile(folder / source / figure, FIGURES / f"{name}.svg")
    return 0


def _fill(text: str, mark: str, content: Callable[[str], str]) -> str:
    """Replace what is between `<!-- mark -->` and `<!-- end -->`; the mark's group says with what."""
    pattern = f"(<!-- {mark} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}\n{content(found[2])}\n\n{found[3]}", text, flags=re.DOTALL)


def _block(names: Sequence[str], documents: dict[str, dict[str, Any]]) -> str:
    """The commands, one table for all of them, and the machine and date."""
    there = [documents[name] for name in names if name in documents]
    missing = [name for name in names if name not in documents]
    parts = []
    if there:
        commands = "\n".join(document["command"] for document in there)
        parts = [f"```sh\n{commands}\n```", *(table.markdown() for table in _together(there)), _measured_on(there)]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _together(documents: Sequence[dict[str, Any]]) -> list[Table]:
    """Several results of one kind in one table."""
    lists = {"speed": "cases", "memory": "rows", "depth": "series", "construction": "rows", "printed": "lines"}
    key = lists[documents[0]["benchmark"]]
    return tables_of({**documents[0], key: [each for document in documents for each in document[key]]})


def _measured_on(documents: Sequence[dict[str, Any]]) -> str:
    """The machine, the range of dates and the range of peaks."""
    first, last = documents[0]["machine"]["date"], documents[-1]["machine"]["date"]
    date = first if first == last else f"{first} to {last}"
    line = machine_line({"machine": documents[0]["machine"] | {"date": date}})
    peaks = [document["peak_gflops"] for document in documents if "peak_gflops" in document]
    if peaks:
        dtypes = dict.fromkeys(dtype for peak in peaks for dtype in peak)
        by_dtype = {dtype: [peak[dtype] for peak in peaks if dtype in peak] for dtype in dtypes}
        spans = [f"{min(found):.0f} … {max(found):.0f} in {dtype}" for dtype, found in by_dtype.items()]
        line += f" Fastest matrix product, GFLOP/s: {', '.join(spans)}."
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write", "goals", "list"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("performance"))
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of commands to run")
    parser.add_argument("--prefix", default="", metavar="CMD", help="put before every command")
    args = parser.parse_args()
    if args.what == "list":
        print("\n".join(f"{name:<32} {command}" for name, command in (COMMANDS | PRINTS).items()))
        return 0
    folder = args.folder.resolve()
    if args.what == "run":
        return run(folder, args.only, shlex.split(args.prefix))
    return write(folder, goals_only=args.what == "goals")


if __name__ == "__main__":
    sys.exit(main())
