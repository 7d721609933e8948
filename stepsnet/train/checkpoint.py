"""Checkpoints that survive whatever happens while they are written, and run no code when they are read.

    checkpoints/
      step-00000500/          appears whole, by one rename
        state.json            step, layout, position in the data
        weights.safetensors   ema.safetensors   optimizer.pt (tensors only)        layout "whole"
        shards/*.safetensors  all of it, a file a process, by torch's DCP          layout "sharded"
      latest                  the pointer: written last, read first
"""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.files import TEMPORARY, explain_full_disk, remove_folder, remove_leftovers, replace_file, sync_folder, write_file
from stepsnet.train import sharded
from stepsnet.train.distributed import Processes
from stepsnet.train.tensors import fill, like

FORMAT = 1
OptimizerState = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Weights:
    """The live tensors of a run: what is saved, and what is filled on loading."""

    model: Mapping[str, Tensor]
    ema: Mapping[str, Tensor]
    optimizer: torch.optim.Optimizer

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that the optimiser moves, by name."""
        moved = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        return {name: tensor for name, tensor in self.model.items() if id(tensor) in moved}

    def optimizer_state(self) -> OptimizerState:
        """The optimiser's tensors (moments, step counts) by parameter; none before its first update."""
        state = {name: self.optimizer.state[tensor] for name, tensor in self.parameters.items() if tensor in self.optimizer.state}
        return {name: {key: value for key, value in entry.items() if isinstance(value, Tensor)} for name, entry in state.items()}

    def flat(self) -> dict[str, Tensor]:
        """Everything under one roof, for the sharded layout."""
        moments = {f"optimizer/{name}/{key}": tensor for name, entry in self.optimizer_state().items() for key, tensor in entry.items()}
        return {f"model/{n}": t for n, t in self.model.items()} | {f"ema/{n}": t for n, t in self.ema.items()} | moments


class Checkpoints:
    """The checkpoints of one run folder. Every process calls `save` and `load`; the first one writes what is not sharded."""

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self.folder, self.keep, self.processes = folder, keep, processes
        if processes.first:
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)

    def save(self, step: int, weights: Weights, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint and point to it; only then delete the oldest. `facts` (JSON) are given back by `load`."""
        if self.processes.decide(lambda: latest(self.folder) == self._path(step)):
            return
        temporary = self.folder / f"{TEMPORARY}step-{step:08d}"
        is_sharded = self.processes.parallel == "fsdp"
        state = {"format": FORMAT, "step": step, "layout": "sharded" if is_sharded else "whole", "facts": dict(facts)}
        if is_sharded:
            tensors = weights.flat()
            with self._writing(temporary, sharded.local_bytes(tensors)):
                sharded.save(tensors, temporary / "shards", self.processes)
        if self.processes.first:
            files = {"state.json": json.dumps(state).encode()} | ({} if is_sharded else _whole(weights))
            with self._writing(temporary, sum(map(len, files.values()))):
                for name, content in files.items():
                    write_file(temporary / name, content)
            self._publish(temporary, step)

    @contextmanager
    def _writing(self, temporary: Path, size: int) -> Iterator[None]:
        pointed = latest(self.folder)
        consolation = f"The previous checkpoint, {pointed}, is intact." if pointed else "There is no earlier checkpoint."
        with explain_full_disk(temporary, size, consolation):
            try:
                temporary.mkdir(parents=True, exist_ok=True)
                yield
            except OSError:
                remove_leftovers(self.folder)  # what was written so far only takes room
                raise

    def _publish(self, temporary: Path, step: int) -> None:
        final = self._path(step)
        sync_folder(temporary)
        if final.exists():  # a process was killed between this rename and the pointer
            remove_folder(final)
        temporary.rename(final)
        sync_folder(self.folder)
        replace_file(self.folder / "latest", f"{final.name}\n".encode())
        for old in sorted(path for path in self.folder.glob("step-*") if path != final)[: -self.keep + 1 or None]:
            remove_folder(old)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def load(self, weights: Weights) -> tuple[int, dict[str, Any]] | None:
        """Fill `weights` from the latest checkpoint and return its step and facts; None if there is no checkpoint yet."""
        path = self.processes.decide(lambda: latest(self.folder))
        if path is None:
            return None
        state = read_state(path)
        if state["layout"] == "sharded":
            _load_sharded(path / "shards", weights)
        else:
            fill_tensors(weights.model, read_tensors(path / "weights.safetensors"), path)
            if weights.ema:
                fill_tensors(weights.ema, read_tensors(path / "ema.safetensors"), path)
            _set_optimizer_state(weights, read_optimizer(path / "optimizer.pt"), path)
        return state["step"], state["facts"]


def latest(folder: Path) -> Path | None:
    """The checkpoint that the pointer in `folder` names."""
    pointer = folder / "latest"
    if not pointer.exists():
        return None
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if not name.startswith("step-") or os.sep in name or not (folder / name).is_dir():
        raise UsageError(f"{pointer} names {name!r}, but there is no such checkpoint beside it.")
    return folder / name


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The metadata of a checkpoint."""
    try:
        state = json.loads((checkpoint / "state.json").read_bytes())
        if state["format"] > FORMAT:
            raise UsageError(f"{checkpoint} was written by a newer stepsnet (format {state['format']}, this one reads {FORMAT}).")
        return {"step": int(state["step"]), "layout": str(state["layout"]), "facts": dict(state["facts"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{checkpoint / 'state.json'} is not the metadata of a checkpoint ({error}).") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; anything else, a pickle above all, is refused unread."""
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a safetensors file ({error}) and is refused.") from error


def read_optimizer(path: Path) -> OptimizerState:
    """The optimiser's tensors. The file is a pickle, read by torch's reader that knows tensors and refuses everything else."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # no file of ours; the refusal below says all
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is refused: it holds more than tensors, or less, and could run code when read ({reason}).") from error
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for entry in state.values() for t in entry.values()):
        raise UsageError(f"{path} is not an optimiser's state: it should hold tensors by the names of parameters.")
    return state


def read_weights(checkpoint: Path, names: Mapping[str, Tensor], *, ema: bool = False) -> None:
    """Fill a whole model on one process (`names`: its tensors) from a checkpoint of either layout, without the optimiser."""
    if read_state(checkpoint)["layout"] == "sharded":
        part = "ema" if ema else "model"
        sharded.load({f"{part}/{name}": tensor.detach() for name, tensor in names.items()}, checkpoint / "shards")
    else:
        fill_tensors(names, read_tensors(checkpoint / ("ema.safetensors" if ema else "weights.safetensors")), checkpoint)


def fill_tensors(targets: Mapping[str, Tensor], source: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors by name, after making sure that names and shapes agree."""
    for name in sorted(targets.keys() ^ source.keys()):
        raise UsageError(f"{path} does not fit the model: {name} is only in {'the model' if name in targets else 'the checkpoint'}.")
    for name, target in targets.items():
        if source[name].shape != target.shape:
            raise UsageError(f"{path} does not fit the model: {name} is {tuple(source[name].shape)} there, {tuple(target.shape)} here.")
        fill(target, source[name])


def _whole(weights: Weights) -> dict[str, bytes]:
    buffer = io.BytesIO()
    torch.save(weights.optimizer_state(), buffer)
    files = {"weights.safetensors": _safe_bytes(weights.model), "optimizer.pt": buffer.getvalue()}
    return files | ({"ema.safetensors": _safe_bytes(weights.ema)} if weights.ema else {})


def _safe_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def _set_optimizer_state(weights: Weights, state: OptimizerState, path: Path) -> None:
    parameters = weights.parameters
    for name, entry in state.items():
        if name not in parameters:
            raise UsageError(f"{path} does not fit the model: the optimiser's state has {name}, which the model does not have.")
        parameter = parameters[name]
        weights.optimizer.state[parameter] = {
            key: like(value, parameter) if value.shape == parameter.shape else value.to(parameter.device) for key, value in entry.items()
        }


def _load_sharded(folder: Path, weights: Weights) -> None:
    """Every process reads the shards it needs, of however many processes wrote them."""
    targets = {name: tensor.detach() for name, tensor in weights.flat().items() if not name.startswith("optimizer/")}
    moments: dict[str, dict[str, Tensor]] = {}
    parameters = weights.parameters
    for name, shape in sharded.shapes(folder).items():
        if name.startswith("optimizer/"):
            _, parameter, key = name.split("/")
            if parameter not in parameters:
                raise UsageError(f"{folder} does not fit the model: the optimiser's state has {parameter}, which the model does not have.")
            pattern = parameters[parameter].detach()
            moment = torch.zeros_like(pattern) if shape == pattern.shape else torch.zeros(shape, device=pattern.device)
            targets[name] = moments.setdefault(parameter, {})[key] = moment
    sharded.load(targets, folder)
    for parameter, entry in moments.items():
        weights.optimizer.state[parameters[parameter]] = dict(entry)
