"""Import time, and the memory of loading a model and of preparing text, each measured in new processes.

    python -m tests.checks.processes imports [--rounds 9]
    python -m tests.checks.processes loading [--model steps_deit_deep_d96]
    python -m tests.checks.processes text [--small 50] [--large 500] [--vocab 50000] [--workers 2] [--folder FOLDER]

imports: `import stepsnet` and the first use of a public name, beside `import torch`. Target: ratios under 1.6.
loading: resident memory above that of the model without weights, copied and memory-mapped (the default). Target:
mapped, the process's private memory grows by less than a tenth of the file.
text: peak memory of `stepsnet prepare-text` and its processes (proportional set size, 20 samples per second) at two
sizes of synthetic text: words of a fixed vocabulary by Zipf's law, one in a thousand new. Target: the larger peak is up
to 1.2 times the smaller.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

IMPORTS = {
    "import torch": "import torch",
    "import stepsnet": "import stepsnet",
    "first use": "from stepsnet import create_model",
}  # fmt: skip
IMPORT_TARGET, TEXT_TARGET = 1.6, 1.2
LOADING_CHILD = """
import sys
from stepsnet import create_model, load_model
name, path, way = sys.argv[1:]
def resident(kind):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind))
create_model(name, device="meta")
peak, own = resident("VmHWM"), resident("RssAnon")
model = load_model(path, mmap=way == "mapped")
print(resident("VmHWM") - peak, resident("RssAnon") - own)
"""
LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)


def imports(args: argparse.Namespace) -> int:
    for statement in IMPORTS.values():
        seconds(statement)  # the first time reads files from disk and compiles ours
    times: dict[str, list[float]] = {label: [] for label in IMPORTS}
    for _ in range(max(7, args.rounds)):
        for label, statement in IMPORTS.items():
            times[label].append(seconds(statement))
    medians = {label: statistics.median(values) for label, values in times.items()}
    torch = medians["import torch"]
    print(f"import stepsnet / import torch = {medians['import stepsnet'] / torch:.2f} (target < {IMPORT_TARGET})")
    print(f"first use       / import torch = {medians['first use'] / torch:.2f}")
    for label, values in times.items():
        print(
            f"{label:<16}median {medians[label]:.3f} s, "
            f"{min(values):.3f} to {max(values):.3f} s over {len(values)} rounds"
        )
    return 0 if max(medians["import stepsnet"], medians["first use"]) < IMPORT_TARGET * torch else 1


def seconds(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def loading(args: argparse.Namespace) -> int:
    from stepsnet import create_model, save_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(create_model(args.model), path)
        size = path.stat().st_size / 2**20
        print(f"{args.model}, a file of {size:.0f} MiB; memory above that of the model without weights:")
        own = 0.0
        for way in ("copied", "mapped"):
            command = [sys.executable, "-c", LOADING_CHILD, args.model, str(path), way]
            peak, own = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
            print(f"{way}: peak {peak:.0f} MiB, private {own:.0f} MiB")
    return 0 if own < size / 10 else 1


def text(args: argparse.Namespace) -> int:
    peaks = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for size in (args.small, args.large):
            path, out = Path(folder) / f"{size}.txt", Path(folder) / f"out{size}"
            make_text(path, size)
            words = ["--vocab", str(args.vocab), "--workers", str(args.workers), "--out", str(out)]
            peaks[size], took = peak_of([sys.executable, "-m", "stepsnet", "prepare-text", str(path), *words])
            print(
                f"{size:5} MB of text: peak {peaks[size] / 1e6:6.0f} MB, {took:.0f} s, {size / took:.2f} MB/s",
                flush=True,
            )
            path.unlink()
    ratio = peaks[args.large] / peaks[args.small]
    print(f"peak at {args.large} MB / peak at {args.small} MB = {ratio:.3f} (target: up to {TEXT_TARGET})")
    return 0 if ratio <= TEXT_TARGET else 1


def make_text(path: Path, megabytes: int) -> None:
    draw = np.random.default_rng(0)
    known = [bytes(draw.choice(LETTERS, size=size, p=zipf(26))) for size in draw.integers(2, 11, size=60_000)]
    chances = zipf(len(known))
    left = megabytes * 1_000_000
    with path.open("wb") as file:
        while left > 0:
            words = [known[index] for index in draw.choice(len(known), size=20_000, p=chances)]
            for place in draw.integers(0, len(words), size=20):
                words[place] = bytes(draw.choice(LETTERS, size=9))
            text = b"".join(word + (b".\n" if number % 17 == 0 else b" ") for number, word in enumerate(words))
            file.write(text[:left])
            left -= len(text)


def zipf(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    chances = 1 / np.arange(1, count + 1)
    return chances / chances.sum()


def peak_of(words: list[str]) -> tuple[int, float]:
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(memory(pid) for pid in family(process.pid)))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"prepare-text exited with {process.returncode}")
    return peak, time.perf_counter() - started


def family(root: int) -> list[int]:
    """A process and its descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += map(int, task.read_text().split())
            except OSError:
                continue  # it has just ended
    return found


def memory(pid: int) -> int:
    """Proportional set size in bytes; 0 for a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_imports, of_loading, of_text = (commands.add_parser(name) for name in ("imports", "loading", "text"))
    of_imports.set_defaults(check=imports)
    of_imports.add_argument("--rounds", type=int, default=9)
    of_loading.set_defaults(check=loading)
    of_loading.add_argument("--model", default="steps_deit_deep_d96")
    of_text.set_defaults(check=text)
    of_text.add_argument("--small", type=int, default=50, help="megabytes")
    of_text.add_argument("--large", type=int, default=500, help="megabytes")
    of_text.add_argument("--vocab", type=int, default=50_000)
    of_text.add_argument("--workers", type=int, default=2)
    of_text.add_argument("--folder", type=Path, help="where the text is written (default: a temporary folder)")
    args = parser.parse_args()
    return int(args.check(args))


if __name__ == "__main__":
    sys.exit(main())
