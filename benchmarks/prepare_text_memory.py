"""Peak memory of `stepsnet prepare-text` at 50 and 500 MB of text, which should be within 1.2 times of each other.

    python benchmarks/prepare_text_memory.py [--small 50] [--large 500] [--vocab 50000] [--workers 2] [--folder FOLDER]

The text is made up: words of a fixed vocabulary by Zipf's law, with new words turning up at a steady rate, as in real text. Memory is
that of the command and all of its processes together (proportional set size, which counts shared pages once), sampled 20 times a second.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WANTED = 1.2
LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)


def make_text(path: Path, megabytes: int) -> None:
    draw = np.random.default_rng(0)
    known = [bytes(draw.choice(LETTERS, size=size, p=_falling(26))) for size in draw.integers(2, 11, size=60_000)]
    chances = _falling(len(known))
    left = megabytes * 1_000_000
    with path.open("wb") as file:
        while left > 0:
            words = [known[index] for index in draw.choice(len(known), size=20_000, p=chances)]
            for place in draw.integers(0, len(words), size=20):  # one word in a thousand was never seen before
                words[place] = bytes(draw.choice(LETTERS, size=9))
            text = b"".join(word + (b".\n" if number % 17 == 0 else b" ") for number, word in enumerate(words))
            file.write(text[:left])
            left -= len(text)


def _falling(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Zipf's law."""
    chances = 1 / np.arange(1, count + 1)
    return chances / chances.sum()


def processes(root: int) -> list[int]:
    """A process and everything it has started."""
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


def peak_of(words: list[str]) -> tuple[int, float]:
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(memory(pid) for pid in processes(process.pid)))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"prepare-text ended with {process.returncode}")
    return peak, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=50, help="megabytes")
    parser.add_argument("--large", type=int, default=500, help="megabytes")
    parser.add_argument("--vocab", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the text is put (default: a temporary folder)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    peaks = {}
    try:
        for size in (arguments.small, arguments.large):
            text, out = folder / f"{size}.txt", folder / f"out{size}"
            make_text(text, size)
            words = ["--vocab", str(arguments.vocab), "--workers", str(arguments.workers), "--out", str(out)]
            peaks[size], seconds = peak_of([sys.executable, "-m", "stepsnet", "prepare-text", str(text), *words])
            print(f"{size:5} MB of text: peak {peaks[size] / 1e6:6.0f} MB, {seconds:.0f} s, {size / seconds:.2f} MB/s", flush=True)
            text.unlink()
    finally:
        shutil.rmtree(folder)
    ratio = peaks[arguments.large] / peaks[arguments.small]
    print(f"peak at {arguments.large} MB / peak at {arguments.small} MB = {ratio:.3f} (wanted: up to {WANTED})")
    raise SystemExit(0 if ratio <= WANTED else 1)


if __name__ == "__main__":
    main()
