"""The CPU kernels of commit 23fcf29 against compiled blocks and against eager mode without them (maintainers.md)."""

# ruff: noqa: I001, INP001
from __future__ import annotations

import statistics
import time

import torch
from stepsnet.blocks import conv_kernels, kernels
from stepsnet.families import compile_blocks, create_model

torch.set_num_threads(1)
OWN, ROUNDS = (kernels.applies, conv_kernels.applies), 9


def use_kernels(on: bool) -> None:
    kernels.applies, conv_kernels.applies = OWN if on else (lambda *_, **__: False,) * 2


def measure(name: str, batch: int, mode: str) -> None:
    eager, compiled = create_model(name), compile_blocks(create_model(name))
    x = torch.randn(batch, *eager.input_size)
    ways = {"kernels": (eager, True), "eager": (eager, False), "compiled": (compiled, False)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 2):  # two rounds of warm-up
        for way, (model, on) in ways.items():
            use_kernels(on)
            model.train(mode == "training")
            began = time.process_time()
            if mode == "training":
                model.zero_grad(set_to_none=True)
                model(x).square().mean().backward()
            else:
                with torch.inference_mode():
                    model(x)
            seconds[way] += [time.process_time() - began] if number > 1 else []
    median = {way: statistics.median(found) for way, found in seconds.items()}
    ratios = [f"{way} / kernels {median[way] / median['kernels']:.2f}" for way in ("compiled", "eager")]
    print(name, batch, mode, *ratios, flush=True)


for model_and_batch in (("deit_tiny", 8), ("deit_small", 4), ("swin_tiny", 4), ("resnet18", 4), ("resnet50", 4)):
    for each in ("inference", "training"):
        measure(*model_and_batch, each)
