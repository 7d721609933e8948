"""How much memory loading takes: the 482-layer network of Table 5(a) copied out of its file, and mapped, as `load_model` does it.

    python benchmarks/loading_memory.py [--model steps_deit_deep_d96]

Resident memory (Linux) of a new interpreter for each way, above what it had with the hollow model made: its peak, and what of it is the
process's own after loading and is not the file's pages in the system's cache, which all processes share and which can be let go.
Expected: mapped, the process's own memory grows by less than a tenth of the file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from stepsnet import create_model, save_model

CHILD = """
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="steps_deit_deep_d96")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(create_model(args.model), path)
        size = path.stat().st_size / 2**20
        print(f"{args.model}, a file of {size:.0f} MiB; memory above that of the hollow model:")
        own = 0.0
        for way in ("copied", "mapped"):
            command = [sys.executable, "-c", CHILD, args.model, str(path), way]
            peak, own = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
            print(f"{way}: peak {peak:.0f} MiB, of its own {own:.0f} MiB")
    return 0 if own < size / 10 else 1


if __name__ == "__main__":
    sys.exit(main())
