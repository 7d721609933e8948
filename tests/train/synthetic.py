"""Shared by the tests of training: small runs, ways to stop them, and fingerprints to compare them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import DataConfig
from stepsnet.runs.folder import CHECKPOINTS, METRICS, WEIGHTS, read_lines
from stepsnet.tasks.base import Batch, MapDataset
from stepsnet.train.callbacks import Callback
from stepsnet.train.checkpoint import latest, read_optimizer, read_tensors
from stepsnet.train.config import CheckpointConfig, EvalConfig, OptimConfig, TrainConfig, customise
from stepsnet.train.trainer import Trainer

CLASSES, SIZE = 5, 16


class NoisyImages:
    """Sample (epoch, index) is the pattern of its class with its own noise. `damaged` ones are unreadable."""

    def __init__(self, length: int, poisoned: frozenset[int], damaged: frozenset[int]) -> None:
        self.length, self.poisoned, self.damaged = length, poisoned, damaged
        self.patterns = torch.randn(CLASSES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        if index in self.damaged:
            return None
        noise = torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(epoch * 100_003 + index))
        image = self.patterns[index % CLASSES] + noise
        return (image * float("nan") if index in self.poisoned else image), index % CLASSES, index

    @property
    def skipped(self) -> int:
        return 0


class NoisyTask:
    """A task that needs no library. `poisoned` samples are NaN, `damaged` ones unreadable."""

    name, unit, headline, higher_is_better = "classification", "images", "top1", True

    def __init__(
        self, samples: int = 40, valid: int = 13, *, poisoned: Iterable[int] = (), damaged: Iterable[int] = ()
    ) -> None:
        self.train: MapDataset = NoisyImages(samples, frozenset(poisoned), frozenset(damaged))
        self.valid: MapDataset = NoisyImages(valid, frozenset(), frozenset())

    def model_kwargs(self) -> dict[str, Any]:
        return {"num_classes": CLASSES, "in_chans": 3, "img_size": SIZE}

    def collate(self, samples: list[Any]) -> Batch:
        kept = [sample for sample in samples if sample is not None]
        images = torch.stack([image for image, _, _ in kept]) if kept else torch.empty(0, 3, SIZE, SIZE)
        target, ids = (torch.tensor([sample[place] for sample in kept], dtype=torch.int64) for place in (1, 2))
        return {"image": images, "target": target, "ids": ids}

    def prepare(self, batch: Batch, step: int) -> Batch:
        return {**batch, "image": batch["image"] + 0.01 * step}

    def units(self, batch: Batch) -> int:
        return len(batch["ids"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["target"])

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = model(batch["image"])
        loss = F.cross_entropy(logits, batch["target"], reduction="sum")
        hits = (logits.argmax(1) == batch["target"]).sum()
        return {
            "loss_sum": loss.double(),
            "top1_sum": hits.double(),
            "count": torch.tensor(float(len(logits))).double(),
        }

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        return {
            "loss": totals["loss_sum"] / totals["count"],
            "top1": totals["top1_sum"] / totals["count"],
            "count": totals["count"],
        }

    def describe(self) -> dict[str, Any]:
        return {"train_images": len(self.train)}


def small_config(out: Path, *words: str) -> TrainConfig:
    """Five steps per epoch of a model with 50,000 parameters."""
    config = TrainConfig(
        task="classification",
        model="test_deit",
        iters=12,
        batch_size=8,
        lr=1e-3,
        out=str(out),
        data=DataConfig(kind="digits", img_size=SIZE),
        optim=OptimConfig(clip=1.0),
        eval=EvalConfig(every=0),
        checkpoint=CheckpointConfig(every=0),
    )
    return customise(config, words)


class At(Callback):
    """Calls `action` once step `step` is done."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        if step == self.step:
            self.action()


class PoweredOffError(BaseException):
    """A process that ends without any clean-up."""


def power_off() -> None:
    raise PoweredOffError


def terminate() -> None:
    """What a cluster does before it stops a machine."""
    os.kill(os.getpid(), signal.SIGTERM)


def fingerprint(folder: Path) -> dict[str, Any]:
    """Everything that must be bit-exactly equal in two equal runs."""
    newest = latest(folder / CHECKPOINTS)
    assert newest is not None
    moments = {
        f"{name}.{key}": t
        for name, entry in read_optimizer(newest / "optimizer.pt").items()
        for key, t in entry.items()
    }
    prints = {path.name: tensor_hash(read_tensors(path)) for path in newest.glob("*.safetensors")}
    lines = read_lines(folder / METRICS)
    curve = {"steps": [line["step"] for line in lines], "losses": [line["loss"] for line in lines]}
    final = {"final": tensor_hash(read_tensors(folder / WEIGHTS))} if (folder / WEIGHTS).exists() else {}
    return prints | curve | final | {"optimizer": tensor_hash(moments), "step": newest.name}


def tensor_hash(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(
            name.encode()
            + json.dumps(list(tensors[name].shape)).encode()
            + tensors[name].contiguous().numpy().tobytes()
        )
    return digest.hexdigest()


def in_processes(world: int, work: Callable[[], Any]) -> list[Any]:
    """Run `work` in `world` forked processes with torchrun's variables, and return their results."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def process(rank: int) -> None:
        torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork, and waiting for them never ends
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo")  # once for all runs in `work`: a second group at the same port fails
        try:
            results.put((rank, work(), None))
        except BaseException:  # noqa: BLE001  (the test fails with it)
            results.put((rank, None, traceback.format_exc()))

    processes = [context.Process(target=process, args=(rank,)) for rank in range(world)]
    for member in processes:
        member.start()
    for member in processes:
        member.join(300)
    hanging = [member for member in processes if member.is_alive()]
    for member in hanging:
        member.kill()
    assert not hanging, f"{len(hanging)} processes did not end"
    found = {}
    while not results.empty():
        rank, value, error = results.get()
        assert error is None, f"rank {rank}:\n{error}"
        found[rank] = value
    return [found[rank] for rank in range(world)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
