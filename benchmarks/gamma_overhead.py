"""What it costs to watch γ during training: the share of a run's time that `GammaRecorder` takes.

    python benchmarks/gamma_overhead.py [--steps 300] [--every 50] [--model test_steps_deit] [--plan "16x24, 22x12, 32x12"]

Batches are of 32 digits. What the recorder does is timed from outside: its passes through the model with the lines it writes, and, apart,
the picture it draws once, at the end. The first and the last pass are always made, so that short runs show the highest share.
Target: under 2 % for the passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from benchmarks.loop_overhead import Clock
from stepsnet.analysis import GammaRecorder
from stepsnet.data.config import DataConfig
from stepsnet.train.config import CheckpointConfig, EvalConfig, TrainConfig
from stepsnet.train.run import train

TARGET = 0.02
WATCHED = {"on_start": "passes", "on_step": "passes", "on_end": "picture"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--model", default="test_steps_deit")
    parser.add_argument("--plan", default="16x24, 22x12, 32x12")
    args = parser.parse_args()
    clock = Clock()
    clock.running = True
    recorder = GammaRecorder(every=args.every)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            task="classification", model=args.model, plan=args.plan, iters=args.steps, batch_size=32, lr=1e-3, workers=0,
            out=str(Path(folder) / "run"),
            data=DataConfig(kind="digits", img_size=32, crop_pct=1.0), eval=EvalConfig(every=0), checkpoint=CheckpointConfig(every=0),
        )
        for name, part in WATCHED.items():
            patch.object(recorder, name, clock.timed(part, getattr(recorder, name))).start()
        began = time.perf_counter()
        train(config, [recorder])
        whole = time.perf_counter() - began
    share = clock.seconds["passes"] / whole
    run = f"γ every {args.every} of {args.steps} steps, {args.model} with {args.plan}, {whole:.1f} s"
    print(f"{run}: {share:.2%} (target under {TARGET:.0%}); the picture at the end {clock.seconds['picture']:.2f} s")
    return 0 if share < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
