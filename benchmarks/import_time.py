"""How long `import stepsnet` takes beside `import torch`: the two by turns, each in a new interpreter, the median of each.

    python benchmarks/import_time.py [rounds]

The target is a ratio under 1.6. The first use of a public name, which loads torch and our models, is measured beside it, so that
what the lazy import puts off is not hidden. The start of an empty interpreter is part of every figure.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

STATEMENTS = {"import torch": "import torch", "import stepsnet": "import stepsnet", "first use": "from stepsnet import create_model"}
TARGET = 1.6


def seconds(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main(rounds: int) -> int:
    for statement in STATEMENTS.values():
        seconds(statement)  # the first time reads the files from disk and compiles ours
    times: dict[str, list[float]] = {label: [] for label in STATEMENTS}
    for _ in range(rounds):
        for label, statement in STATEMENTS.items():
            times[label].append(seconds(statement))
    medians = {label: statistics.median(values) for label, values in times.items()}
    torch = medians["import torch"]
    print(f"import stepsnet / import torch = {medians['import stepsnet'] / torch:.2f} (target < {TARGET})")
    print(f"first use       / import torch = {medians['first use'] / torch:.2f}")
    for label, values in times.items():
        print(f"{label:<16}median {medians[label]:.3f} s, {min(values):.3f} to {max(values):.3f} s over {rounds} rounds")
    return 0 if max(medians["import stepsnet"], medians["first use"]) < TARGET * torch else 1


if __name__ == "__main__":
    sys.exit(main(max(7, int(sys.argv[1])) if len(sys.argv) > 1 else 9))
