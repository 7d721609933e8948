"""Every figure of docs/performance.md: measures them all, one command after the other, and writes them into the page.

    python -m benchmarks.performance run FOLDER [--only 'timm_*'] [--prefix "nice -n -5"]
    python -m benchmarks.performance write FOLDER
    python -m benchmarks.performance list

`run` leaves one folder a command (result.json, and from `stepsnet bench` pictures and a page) and skips those that are there, so it
can be stopped and continued; an otherwise idle machine is assumed, and about half an hour on 2 cores. `write` puts tables, commands and
machine between the marks of the page, `<!-- bench: NAME … -->` to `<!-- end -->`, and copies its pictures; no number is typed by hand.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import goals_table
from stepsnet.report.bench_tables import WordTable, machine_line, tables_of
from stepsnet.report.html import write as write_whole
from stepsnet.research.bench.machine import describe_machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "performance"
BOTH = "--mode inference training"
TABLE_1 = "resnet18 steps_resnet18 resnet34 steps_resnet34 resnet50 steps_resnet50 deit_tiny steps_deit_tiny deit_small steps_deit_small"
COMMANDS = {
    "timm_deit_tiny": f"stepsnet bench speed deit_tiny --against timm --batch 8 32 {BOTH} --rounds 7",
    "timm_deit_small": f"stepsnet bench speed deit_small --against timm --batch 8 {BOTH} --rounds 7",
    "timm_deit_small_32": f"stepsnet bench speed deit_small --against timm --batch 32 {BOTH} --rounds 7",
    "timm_resnet18": f"stepsnet bench speed resnet18 --against timm --batch 8 32 {BOTH} --rounds 7",
    "timm_resnet50": "stepsnet bench speed resnet50 --against timm --batch 8 32 --mode inference --rounds 7",
    "timm_resnet50_training": "stepsnet bench speed resnet50 --against timm --batch 8 --mode training --rounds 7",
    "timm_resnet50_training_32": "stepsnet bench speed resnet50 --against timm --batch 32 --mode training --rounds 7",
    "timm_resnet_folded": "stepsnet bench speed resnet18 resnet50 --against timm --fold --batch 8 32 --rounds 7",
    "timm_resnet_alike": "stepsnet bench speed resnet18 resnet50 --against timm --channels-last --alike --batch 8 --rounds 7",
    "timm_swin_tiny": f"stepsnet bench speed swin_tiny --against timm --batch 8 {BOTH} --rounds 7",
    "timm_swin_tiny_32": "stepsnet bench speed swin_tiny --against timm --batch 32 --mode inference --rounds 7",
    "timm_swin_tiny_32_training": "stepsnet bench speed swin_tiny --against timm --batch 32 --mode training --rounds 7",
    "baseline_deit_tiny": f"stepsnet bench speed steps_deit_tiny --against baseline --batch 8 32 {BOTH} --rounds 7",
    "baseline_deit_small": f"stepsnet bench speed steps_deit_small --against baseline --batch 8 {BOTH} --rounds 7",
    "baseline_deit_small_32": "stepsnet bench speed steps_deit_small --against baseline --batch 32 --mode inference --rounds 7",
    "baseline_deit_small_32_training": "stepsnet bench speed steps_deit_small --against baseline --batch 32 --mode training --rounds 7",
    "baseline_swin_tiny": f"stepsnet bench speed steps_swin_tiny --against baseline --batch 8 {BOTH} --rounds 7",
    "baseline_swin_tiny_32": "stepsnet bench speed steps_swin_tiny --against baseline --batch 32 --mode inference --rounds 7",
    "baseline_swin_tiny_32_training": "stepsnet bench speed steps_swin_tiny --against baseline --batch 32 --mode training --rounds 7",
    "deep_swin": f"stepsnet bench speed steps_swin_deep_d96 --against baseline --batch 8 {BOTH} --rounds 7",
    "deep_table5b": "stepsnet bench depth --table 5b --batch 8 --rounds 7",
    "memory": "stepsnet bench memory swin_deep_d96 steps_swin_deep_d96 --batch 32 64",
    "memory_tiny": "stepsnet bench memory swin_tiny steps_swin_tiny --batch 32 64",
    "figure6a": f"stepsnet bench speed {TABLE_1} swin_tiny steps_swin_tiny swin_small steps_swin_small --batch 8 --rounds 7",
    "bf16": "stepsnet bench speed deit_small swin_tiny --against eager --dtype bf16 --batch 8 --rounds 7",
    "bf16_training": "stepsnet bench speed deit_tiny --against eager --dtype bf16 --batch 8 --mode training --rounds 7",
    "compiled": "stepsnet bench speed swin_tiny --against timm --compile --batch 8 --rounds 7",
    "exported": "stepsnet bench speed swin_tiny deit_small --against timm onnxruntime openvino --batch 8 --rounds 7",
    "exported_steps": "stepsnet bench speed deit_tiny steps_deit_tiny swin_tiny steps_swin_tiny --against openvino --batch 8 --rounds 7",
    "exported_folded": "stepsnet bench speed resnet50 --against timm onnxruntime openvino --fold --batch 8 --rounds 7",
    "growth": "stepsnet bench depth deit_tiny steps_deit_tiny --batch 4 --rounds 7",
    "growth_training": "stepsnet bench depth deit_tiny steps_deit_tiny --mode training --batch 2 --rounds 7 --widths",
    "construction": "python benchmarks/construction.py --rounds 7",
}
PRINTS = {  # programs whose result is what they print
    "compile_time_deit": "python benchmarks/compile_time.py --families deit",
    "compile_time_swin": "python benchmarks/compile_time.py --families swin",
    "where_time_goes": "python benchmarks/where_time_goes.py",
}
SHOWN = {  # pictures of the page: folder of the command, picture
    "figure6a_throughput": ("figure6a", "accuracy_inference_8_fp32.png"),
    "figure6a_cost": ("figure6a", "macs_inference_8_fp32.png"),
    "figure6c": ("deep_table5b", "throughput_inference.png"),
    "figure6d": ("deep_table5b", "memory.png"),
    "time_depth": ("growth", "time_depth_inference.png"),
    "time_width": ("growth", "time_width_inference.png"),
}


def run(folder: Path, only: str, prefix: Sequence[str]) -> int:
    """One command after the other; those that failed are named at the end."""
    failed = []
    began = time.perf_counter()
    for name, command in (COMMANDS | PRINTS).items():
        if not fnmatch.fnmatch(name, only) or (folder / name / "result.json").is_file():
            continue
        program, *words = shlex.split(command)
        start = [sys.executable, "-m", "stepsnet"] if program == "stepsnet" else [sys.executable]
        print(f"{time.perf_counter() - began:5.0f} s  {name}: {command}", flush=True)
        out = ["--out", str(folder / name)] if name in COMMANDS else []
        done = subprocess.run([*prefix, *start, *words, *out], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if name in PRINTS and done.stdout:
            _keep(folder / name, command, done.stdout)
        if not (folder / name / "result.json").is_file():
            failed.append(name)
    print(f"{time.perf_counter() - began:5.0f} s  done" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _keep(folder: Path, command: str, printed: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "printed", "command": command, "machine": describe_machine(), "lines": printed.splitlines()}
    write_whole(folder / "result.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write(folder: Path) -> int:
    """Fill the page from the results that are there; a place without its results says so."""
    documents = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/result.json"))}
    if not documents:
        print(f"{folder} has no results; `python -m benchmarks.performance run {folder}` measures them", file=sys.stderr)
        return 1
    text = re.sub(
        r"(<!-- bench: ([^>]*?) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{_block(found[2].split(), documents)}\n\n{found[3]}",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    PAGE.write_text(text, encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, (source, picture) in SHOWN.items():
        if (folder / source / picture).is_file():
            shutil.copyfile(folder / source / picture, PICTURES / f"{name}.png")
    return 0


def _block(names: Sequence[str], documents: dict[str, dict[str, Any]]) -> str:
    """The commands, one table for all of them, and when and where it was measured."""
    if names == ["goals"]:
        return goals_table(documents).markdown()
    there = [documents[name] for name in names if name in documents]
    missing = [name for name in names if name not in documents]
    parts = []
    if there:
        commands = "\n".join(document["command"] for document in there)
        parts = [f"```sh\n{commands}\n```", *(table.markdown() for table in _together(there)), _measured_on(there)]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _together(documents: Sequence[dict[str, Any]]) -> list[WordTable]:
    """Results of one kind in one table."""
    lists = {"speed": "cases", "memory": "rows", "depth": "series", "construction": "rows", "printed": "lines"}
    key = lists[documents[0]["benchmark"]]
    return tables_of({**documents[0], key: [each for document in documents for each in document[key]]})


def _measured_on(documents: Sequence[dict[str, Any]]) -> str:
    """The machine, once where nothing but the minute differs; the peaks as a range."""
    first, last = documents[0]["machine"]["date"], documents[-1]["machine"]["date"]
    line = machine_line({"machine": documents[0]["machine"] | {"date": first if first == last else f"{first} to {last}"}})
    peaks = [document["peak_gflops"] for document in documents if "peak_gflops" in document]
    if peaks:
        spans = [f"{min(peak[dtype] for peak in peaks):.0f} … {max(peak[dtype] for peak in peaks):.0f} in {dtype}" for dtype in peaks[0]]
        line += f" Fastest matrix product, GFLOP/s: {', '.join(spans)}."
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write", "list"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("performance"))
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of commands to run")
    parser.add_argument("--prefix", default="", metavar="CMD", help="what to start every command with")
    args = parser.parse_args()
    if args.what == "list":
        print("\n".join(f"{name:<32} {command}" for name, command in (COMMANDS | PRINTS).items()))
        return 0
    folder = args.folder.resolve()
    return write(folder) if args.what == "write" else run(folder, args.only, shlex.split(args.prefix))


if __name__ == "__main__":
    sys.exit(main())
