"""How compile time grows with depth when blocks that are alike share their code: 96 blocks against 24, by blocks and as a whole.

    python benchmarks/compile_time.py [--families deit swin] [--whole] [--training]

Narrow Steps networks on small pictures, so that what is timed is the compiler (inductor). Each compilation has an interpreter and an
empty cache of its own; what is printed is the first call's time less that of a second. Target: under 3 times. With `--whole` also
`torch.compile(model)`, which unrolls the depth; it is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

TARGET = 3.0
# Plans of 24 and of 96 blocks.
PLANS = {
    "deit": ("32x12, 48x6, 64x6", "32x48, 48x24, 64x24"),
    "swin": ("8x2; 16x2; 16x8, 24x4, 32x4; 64x4", "8x2; 16x2; 16x44, 24x22, 32x22; 64x4"),
}
WIDTH = {"deit": 64, "swin": 8}
CHILD = """
import json, sys, time, torch
from stepsnet import compile_blocks, create_model
task = json.loads(sys.argv[1])
torch.manual_seed(0)
model = create_model(f"test_{task['family']}", embed_dim=task["width"], plan=task["plan"]).train(task["training"])
run = compile_blocks(model) if task["way"] == "by blocks" else torch.compile(model)
x = torch.randn(2, *model.input_size)
def call():
    began = time.perf_counter()
    with torch.set_grad_enabled(task["training"]):
        y = run(x)
        if task["training"]:
            y.square().mean().backward()
    return time.perf_counter() - began
first, second = call(), call()
print(json.dumps({"blocks": len(model.blocks_in_order()), "seconds": first - second}))
"""


def compile_once(task: dict[str, object]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        alone = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, "-c", CHILD, json.dumps(task)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | alone)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--training", action="store_true")
    args = parser.parse_args()
    reached = True
    for family in args.families:
        for way in ("by blocks", "as a whole") if args.whole else ("by blocks",):
            shallow, deep = (
                compile_once({"family": family, "width": WIDTH[family], "plan": plan, "way": way, "training": args.training})
                for plan in PLANS[family]
            )
            ratio = deep["seconds"] / shallow["seconds"]
            print(
                f"{family}, {way}: {ratio:.2f} times as long for {deep['blocks']:.0f} blocks as for {shallow['blocks']:.0f}"
                f" ({deep['seconds']:.1f} s and {shallow['seconds']:.1f} s; target under {TARGET:.0f} times)"
            )
            reached &= way != "by blocks" or ratio < TARGET
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
