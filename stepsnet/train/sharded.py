"""Checkpoints of which each process writes its shard, through torch's distributed checkpoint (DCP) in the safetensors format.

DCP's own format pickles its metadata and unpickles it without restraint; its safetensors format has no pickle anywhere.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

from stepsnet.errors import UsageError
from stepsnet.files import sync_folder
from stepsnet.train.distributed import Processes
from stepsnet.train.tensors import local


def save(tensors: dict[str, Tensor], folder: Path, processes: Processes) -> None:
    """Write `tensors`, some of them sharded; every process calls it, and it returns when all have written and synced."""
    if processes.first:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        save_state_dict(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise _plain(error) from error
    if processes.first:
        sync_folder(folder)


def load(targets: dict[str, Tensor], folder: Path) -> None:
    """Fill `targets`, sharded in whatever way they are now."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load_state_dict(targets, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=not dist.is_initialized())
    except CheckpointException as error:
        raise UsageError(f"{folder} cannot be read into this model: {_plain(error)}") from error


def shapes(folder: Path) -> dict[str, torch.Size]:
    """The names and whole shapes of the tensors in a folder of shards."""
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}, where the shards of a checkpoint should be.")
    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"{folder} holds a file that is not safetensors ({error}) and is refused.") from error
    return {name: entry.size for name, entry in metadata.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)}


def local_bytes(tensors: Mapping[str, Tensor]) -> int:
    """How much of `tensors` this process holds."""
    return sum(part.numel() * part.element_size() for part in map(local, tensors.values()))


def _plain(error: CheckpointException) -> BaseException:
    """What went wrong on one of the processes, out of DCP's collection; a full disk keeps its number."""
    causes = [cause for cause, _ in error.failures.values()]
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return OSError(cause.errno, str(cause))
    return causes[0] if causes else error
