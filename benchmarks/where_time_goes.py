"""Where a forward pass spends its time: matrix products, attention, and all the rest, which is linear in the width.

    python benchmarks/where_time_goes.py [MODELS…] [--batch 8] [--rounds 7]

By torch's profiler, which adds a few microseconds to every call; the models take turns, and the median round of each is printed. Products
are those of linear layers and convolutions; attention is PyTorch's fused call, products and softmax in one.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from stepsnet import create_model

PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "mkldnn_convolution", "_convolution_pointwise")
MODELS = ("swin_deep_d96", "steps_swin_deep_d96", "deit_tiny", "steps_deit_tiny")


def milliseconds(model: nn.Module, x: Tensor) -> dict[str, float]:
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
        model(x)
    found = {"products": 0.0, "attention": 0.0, "the rest": 0.0}
    for event in seen.key_averages():
        name = event.key.split("::")[-1]
        kind = "products" if name in PRODUCTS else "attention" if "scaled_dot_product" in name else "the rest"
        found[kind] += event.self_cpu_time_total / 1000
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    models = {name: create_model(name).eval() for name in args.models}
    batches = {name: torch.randn(args.batch, *model.input_size) for name, model in models.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for index in range(args.rounds + 1):
        for name, model in models.items():
            found = milliseconds(model, batches[name])
            if index:  # the first warms up
                rounds[name].append(found)
    for name, passes in rounds.items():
        parts = {part: statistics.median(one[part] for one in passes) for part in passes[0]}
        print(f"{name}, batch {args.batch}: " + ", ".join(f"{part} {time:.0f} ms" for part, time in parts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
