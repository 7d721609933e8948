"""Checkpoints that survive a kill at any time, and that run no code when they are read.

    checkpoints/
      step-00000500/          appears complete, by one rename
        state.json            step, layout, position in the data
        weights.safetensors   ema.safetensors   optimizer.pt (tensors only)        layout "whole"
        shards/*.safetensors  everything, one file per process, by torch's DCP     layout "sharded"
      latest                  the name of the newest checkpoint: written last, read first

DCP's default format unpickles its metadata without restrictions; its safetensors format contains no pickle.
"""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.files import (
    TEMPORARY,
    explain_full_disk,
    remove_folder,
    remove_leftovers,
    replace_file,
    sync_folder,
    write_file,
)  # fmt: skip
from stepsnet.train.distributed import Processes, fill, like, local

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

FORMAT = 1
OptimizerState = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Weights:
    """The tensors of a run in use: saved by `Checkpoints.save`, filled by `Checkpoints.load`."""

    model: Mapping[str, Tensor]
    ema: Mapping[str, Tensor]
    optimizer: torch.optim.Optimizer

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters of the optimiser by name."""
        moved = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        return {name: tensor for name, tensor in self.model.items() if id(tensor) in moved}

    def optimizer_state(self) -> OptimizerState:
        """The tensors of the optimiser (moments, step counts) by parameter; empty before its first update."""
        state = self.optimizer.state
        known = {name: state[tensor] for name, tensor in self.parameters.items() if tensor in state}
        return {name: {k: v for k, v in entry.items() if isinstance(v, Tensor)} for name, entry in known.items()}

    def flat(self) -> dict[str, Tensor]:
        """All tensors in one dictionary, for the sharded layout."""
        moments = {f"optimizer/{n}/{key}": t for n, entry in self.optimizer_state().items() for key, t in entry.items()}
        return {f"model/{n}": t for n, t in self.model.items()} | {f"ema/{n}": t for n, t in self.ema.items()} | moments


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run folder. All processes call `save` and `load`; the first writes what is not sharded."""

    folder: Path
    keep: int
    processes: Processes

    def save(self, step: int, weights: Weights, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint, point to it, and only then delete the oldest. `load` returns `facts` (JSON)."""
        if self.processes.decide(lambda: latest(self.folder) == self._path(step)):
            return
        temporary = self.folder / f"{TEMPORARY}step-{step:08d}"
        is_sharded = self.processes.parallel == "fsdp"
        state = {"format": FORMAT, "step": step, "layout": "sharded" if is_sharded else "whole", "facts": dict(facts)}
        if is_sharded:
            tensors = weights.flat()
            size = sum(part.numel() * part.element_size() for part in map(local, tensors.values()))
            with self._writing(temporary, size):
                _save_shards(tensors, temporary / "shards", self.processes)
        if self.processes.first:
            files = {"state.json": json.dumps(state).encode()} | ({} if is_sharded else _whole(weights))
            with self._writing(temporary, sum(map(len, files.values()))):
                for name, content in files.items():
                    write_file(temporary / name, content)
            self._publish(temporary, step)

    @contextmanager
    def _writing(self, temporary: Path, size: int) -> Iterator[None]:
        before = latest(self.folder)
        left = f"The previous checkpoint, {before}, is intact." if before else "There is no earlier checkpoint."
        with explain_full_disk(temporary, size, left):
            try:
                temporary.mkdir(parents=True, exist_ok=True)
                yield
            except OSError:
                remove_leftovers(self.folder)  # free the space of the unfinished checkpoint
                raise

    def _publish(self, temporary: Path, step: int) -> None:
        final = self._path(step)
        sync_folder(temporary)
        if final.exists():  # a process was killed between the rename and the pointer
            remove_folder(final)
        temporary.rename(final)
        sync_folder(self.folder)
        replace_file(self.folder / "latest", f"{final.name}\n".encode())
        for old in sorted(path for path in self.folder.glob("step-*") if path != final)[: -self.keep + 1 or None]:
            remove_folder(old)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def load(self, weights: Weights) -> tuple[int, dict[str, Any]] | None:
        """Fill `weights` from the latest checkpoint; returns its step and facts, or None if there is no checkpoint."""
        if self.processes.first:
            remove_leftovers(self.folder)
        path = self.processes.decide(lambda: latest(self.folder))
        if path is None:
            return None
        state = read_state(path)
        if state["layout"] == "sharded":
            _load_sharded(path / "shards", weights)
        else:
            _fill(weights.model, read_tensors(path / "weights.safetensors"), path)
            if weights.ema:
                _fill(weights.ema, read_tensors(path / "ema.safetensors"), path)
            _set_optimizer_state(weights, read_optimizer(path / "optimizer.pt"), path)
        return state["step"], state["facts"]


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`, by its pointer file; None if there is none."""
    pointer = folder / "latest"
    if not pointer.exists():
        return None
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if not name.startswith("step-") or os.sep in name or not (folder / name).is_dir():
        raise UsageError(f"{pointer} names {name!r}, but there is no such checkpoint beside it.")
    return folder / name


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The metadata of a checkpoint: step, layout and facts."""
    try:
        state = json.loads((checkpoint / "state.json").read_bytes())
        known = {"step": int(state["step"]), "layout": str(state["layout"]), "facts": dict(state["facts"])}
        version = int(state["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{checkpoint / 'state.json'} is not the metadata of a checkpoint ({error}).") from error
    if version > FORMAT:
        raise UsageError(f"{checkpoint} was written by a newer stepsnet (format {version}, this one reads {FORMAT}).")
    return known


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Other formats, such as pickles, are refused without being read."""
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a safetensors file ({error}) and is refused.") from error


def read_optimizer(path: Path) -> OptimizerState:
    """The tensors of the optimiser. The file is a pickle, read with `weights_only`, which refuses everything else."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # the error below is enough
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is refused: it contains more than tensors and could run code ({reason}).") from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} cannot be read: it is damaged ({reason}).") from error
    tensors = [value for entry in state.values() for value in entry.values()] if isinstance(state, dict) else [None]
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise UsageError(f"{path} is not the state of an optimiser: it must hold tensors by parameter name.")
    return state


def read_weights(checkpoint: Path, names: Mapping[str, Tensor], *, ema: bool = False) -> None:
    """Fill `names`, the tensors of a model on one process, from a checkpoint of either layout, without optimiser."""
    if read_state(checkpoint)["layout"] == "sharded":
        part = "ema" if ema else "model"
        _load_shards({f"{part}/{name}": tensor.detach() for name, tensor in names.items()}, checkpoint / "shards")
    else:
        _fill(names, read_tensors(checkpoint / ("ema.safetensors" if ema else "weights.safetensors")), checkpoint)


def _fill(targets: Mapping[str, Tensor], source: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors by name. Names and shapes must agree."""
    for name in sorted(targets.keys() ^ source.keys()):
        where = "the model" if name in targets else "the checkpoint"
        raise UsageError(f"{path} does not fit the model: {name} is only in {where}.")
    for name, target in targets.items():
        there, here = tuple(source[name].shape), tuple(target.shape)
        if there != here:
            raise UsageError(
                f"{path} does not fit the model: {name} has shape {there} in the checkpoint, {here} in the model."
            )
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
        parameter = _parameter(parameters, name, path)
        weights.optimizer.state[parameter] = {
            key: like(value, parameter) if value.shape == parameter.shape else value.to(parameter.device)
            for key, value in entry.items()
        }


def _parameter(parameters: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in parameters:
        raise UsageError(f"{path} does not fit the model: it has optimiser state of {name}, the model has no {name}.")
    return parameters[name]


def _load_sharded(folder: Path, weights: Weights) -> None:
    """Each process reads the shards it needs, from any number of writing processes."""
    targets = {name: t.detach() for name, t in weights.flat().items() if not name.startswith("optimizer/")}
    moments: dict[str, dict[str, Tensor]] = {}
    parameters = weights.parameters
    for name, shape in _shard_shapes(folder).items():
        if name.startswith("optimizer/"):
            _, parameter, key = name.split("/")
            pattern = _parameter(parameters, parameter, folder).detach()
            moment = torch.zeros_like(pattern) if shape == pattern.shape else torch.zeros(shape, device=pattern.device)
            targets[name] = moments.setdefault(parameter, {})[key] = moment
    _load_shards(targets, folder)
    for parameter, entry in moments.items():
        weights.optimizer.state[parameters[parameter]] = dict(entry)


def _save_shards(tensors: dict[str, Tensor], folder: Path, processes: Processes) -> None:
    """Write `tensors`, some of them sharded. All processes call it; it returns when all have written and synced."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    if processes.first:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise _cause(error) from error
    if processes.first:
        sync_folder(folder)


def _load_shards(targets: dict[str, Tensor], folder: Path) -> None:
    """Fill `targets`, sharded in any way."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(targets, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=not dist.is_initialized())
    except CheckpointException as error:
        raise UsageError(f"{folder} cannot be read into this model: {_cause(error)}") from error


def _shard_shapes(folder: Path) -> dict[str, torch.Size]:
    """The names and whole shapes of the tensors in a folder of shards."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder} with the shards of the checkpoint.")
    try:
        entries = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"{folder} holds a file that is not safetensors ({error}) and is refused.") from error
    return {name: entry.size for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def _cause(error: CheckpointException) -> BaseException:
    """The error of one of the processes, out of DCP's collection. A full disk keeps its errno."""
    causes = [cause for cause, _ in error.failures.values()]
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return OSError(cause.errno, str(cause))
    return causes[0] if causes else error
