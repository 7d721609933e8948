"""One process or many: joining and stopping them, distributing the model (DDP, FSDP2), collectives, sharded tensors."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group exists: its default arguments would keep that group alive
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor

from stepsnet.cpu import has_bf16
from stepsnet.errors import UsageError

Parallel = Literal["none", "ddp", "fsdp"]
Value = TypeVar("Value")
Network = TypeVar("Network", bound=nn.Module)
SAME_KEYSTROKE_SECONDS = 1.0
GRACE_SECONDS = 20.0


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as seen by this one."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    parallel: Parallel = "none"

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, numbers: list[float]) -> list[float]:
        """Each number summed over all processes."""
        if self.world == 1:
            return numbers
        totals = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(totals)
        return totals.tolist()

    def decide(self, choose: Callable[[], Value]) -> Value:
        """The result of `choose`, which only the first process calls, on all processes. So is a `UsageError`."""
        if self.world == 1:
            return choose()
        box: list[Any] = [None]
        if self.first:
            try:
                box = [choose()]
            except UsageError as error:
                box = [error]
        dist.broadcast_object_list(box, device=self.device)
        if isinstance(box[0], UsageError):
            raise box[0]
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in the order of ranks."""
        if self.world == 1:
            return [value]
        box: list[Any] = [None] * self.world
        dist.all_gather_object(box, value)
        return box

    def precision(self, wanted: str) -> str:
        """The precision of forward passes: fp32 instead of bf16 on a CPU without bf16 instructions, where bf16 is
        slower."""
        return "fp32" if self.device.type == "cpu" and not has_bf16() else wanted

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """The context of forward passes: bf16 is automatic mixed precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision(precision) == "bf16")

    def move(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch on the device of this process."""
        return {key: tensor.to(self.device, non_blocking=True) for key, tensor in batch.items()}

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the running statistics of the first process to all: each has computed its own from its samples."""
        if self.world > 1:
            parameters = dict(model.named_parameters())
            for name, tensor in model_tensors(model).items():
                if name not in parameters:
                    dist.broadcast(tensor, src=0)


def launched() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, started this process."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def restarted() -> bool:
    """Whether torchrun has restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def choose_device(wanted: str) -> torch.device:
    """The device `wanted`; `auto`: the GPU of this process if there is one, else the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted, local_rank) if wanted == "cuda" else torch.device(wanted)
        torch.empty(0, device=device)
    except NotImplementedError as error:
        raise UsageError(f"device={wanted} is not available: this build of PyTorch does not support it.") from error
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={wanted} is not available: {str(error).splitlines()[0]}") from error
    if device.type == "meta":
        raise UsageError("device=meta holds no values and cannot train; it must be cpu or a GPU, such as cuda.")
    return device


@contextmanager
def join_processes(parallel: Parallel, device: str = "auto") -> Iterator[Processes]:
    """Join the processes that torchrun started. The body runs in each; a failure is reported with its rank.

    If the caller has initialised the process group, that group is used and not destroyed.
    """
    world = int(os.environ.get("WORLD_SIZE", "1")) if launched() else 1
    if parallel == "none":
        if world > 1:
            raise UsageError(
                f"torchrun started {world} processes, but parallel=none uses one; add parallel=ddp or parallel=fsdp."
            )
        yield Processes(device=choose_device(device))
        return
    if not launched():
        raise UsageError(
            f"parallel={parallel} needs several processes: start them with `torchrun --nproc-per-node N -m stepsnet …`."
        )
    place = choose_device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    joined_before = dist.is_initialized()
    if not joined_before:
        _join("nccl" if place.type == "cuda" else "gloo")
    processes = Processes(rank=dist.get_rank(), world=world, device=place, parallel=parallel)
    try:
        yield processes
    except BaseException as error:
        print(f"rank {processes.rank} of {world} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise  # without destroy_process_group, which could wait for a process that has died
    if not joined_before:
        # The wrapped model goes before its process group. As the last owner of the group it would end the group's
        # threads while it holds the interpreter's lock. A thread that still lets go of a tensor waits for that lock.
        gc.collect()
        dist.destroy_process_group()


def _join(backend: str) -> None:
    """Initialise the process group. At exit, whatever still holds it is collected, which ends its threads.

    A thread of gloo that lets go of a tensor while the interpreter shuts down aborts the process.
    After a restart on one node, torch 2.13 uses the store of the last attempt, finds the addresses of dead processes
    and hangs; so each attempt gets its own prefix in the store. Nodes do not agree on the number of the attempt: for
    several nodes, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which makes torchrun open a new store each time.
    """
    atexit.register(gc.collect)
    one_node = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    if not (restarted() and one_node):
        dist.init_process_group(backend)
        return
    store, rank, world = next(rendezvous("env://"))
    own_part = PrefixStore(f"restart-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(backend, store=own_part, rank=rank, world_size=world)


class StopRequest:
    """The first stop signal, if there was one; true if there was."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at = 0.0

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals(*, launched: bool) -> Iterator[StopRequest]:
    """Collect Ctrl-C and SIGTERM while the body runs. The trainer then finishes its step, saves and exits.

    Outside the main thread Python delivers no signals. Under a launcher (`launched`), one Ctrl-C arrives twice, from
    the terminal and the launcher, so only a later one counts as the second. A process that waits for a dead one is
    ended by a watchdog after a grace period.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        again = number == signal.SIGINT and request.signal == signal.SIGINT
        if again and time.monotonic() - request.at > SAME_KEYSTROKE_SECONDS:
            os._exit(128 + number)
        if request.signal is None:
            request.signal, request.at = number, time.monotonic()
            if number == signal.SIGINT:
                _say("Stopping after this step and saving. Press Ctrl-C again to exit at once.")
                if not launched:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the next one ends the process while torch computes

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if launched:
            with _watchdog(GRACE_SECONDS):
                yield request
        else:
            yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _watchdog(grace: float) -> Iterator[None]:
    """End the process `grace` seconds after SIGTERM if it is still in the body.

    A thread reads signals from a pipe that the interpreter's C handler writes to, because the Python handler above has
    to wait for the main thread, which may be waiting in a collective operation for a process that has died.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    left = threading.Event()

    def watch() -> None:
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        if not left.wait(grace):
            _say(f"Process {os.getpid()} did not exit within {grace:.0f} s of SIGTERM and is ended.")
            os._exit(128 + signal.SIGTERM)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        left.set()
        os.write(writer, bytes([signal.SIGTERM]))  # ends the thread's read
        thread.join()
        os.close(reader)
        os.close(writer)


def _say(sentence: str) -> None:
    """Write to standard error without buffering, as a signal handler must, and show the cursor of a terminal again."""
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    os.write(2, f"{cursor}\n{sentence}\n".encode())


def spread(build: Callable[[str | None], Network], processes: Processes, *, seed: int) -> tuple[Network, nn.Module]:
    """The model on this process, and the module that runs it in training: the same object, or its DDP wrapper.

    `build(device)` makes the model. Its initial weights depend on `seed` only, not on the number of processes.
    """
    if processes.parallel == "fsdp":
        model = _shard(build, processes, seed)
        return model, model
    torch.manual_seed(seed)
    model = build(None).to(processes.device)
    if processes.parallel == "none":
        return model, model
    on_card = [processes.device.index] if processes.device.type == "cuda" else None
    return model, nn.parallel.DistributedDataParallel(model, device_ids=on_card, gradient_as_bucket_view=True)


def _shard(build: Callable[[str | None], Network], processes: Processes, seed: int) -> Network:
    """FSDP2: built on the meta device, sharded block by block, filled from the whole model of the first process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build("meta")
    mesh = init_device_mesh(processes.device.type, (processes.world,))
    for block in getattr(model, "blocks_in_order", list)():
        fully_shard(block, mesh=mesh)
    # The root is resharded after the forward pass too; otherwise its weights would stay whole after an evaluation.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model.to_empty(device=processes.device)
    torch.manual_seed(seed)
    source = build(None) if processes.first else None
    whole = (model_tensors(source) | dict(source.named_buffers())) if source is not None else {}
    for name, tensor in (model_tensors(model) | dict(model.named_buffers())).items():
        start = whole[name].detach().contiguous() if processes.first else torch.empty(tensor.shape, dtype=tensor.dtype)
        message = start.to(processes.device)
        dist.broadcast(message, src=0)
        fill(tensor, message)
    return model


def sync_gradients(forward: nn.Module, now: bool) -> Any:
    """A context in which gradients are summed over the processes only if `now`: at the last accumulated part."""
    if isinstance(forward, nn.parallel.DistributedDataParallel):
        return nullcontext() if now else forward.no_sync()
    if callable(switch := getattr(forward, "set_requires_gradient_sync", None)):
        switch(now)
    return nullcontext()


def gradient_norm(parameters: list[Tensor], limit: float) -> float:
    """The norm of the whole gradient, the same on all processes. A `limit` above 0 clips the gradient."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    if limit and value > limit:
        torch._foreach_mul_([g.to_local() if hasattr(g, "to_local") else g for g in gradients], limit / (value + 1e-6))
    return value


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, not copies, by their names in the state dict."""
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}


def local(tensor: Tensor) -> Tensor:
    """The shard of a tensor on this process, sharing its memory; the tensor itself if it is not sharded."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """The whole tensor. If it is sharded, all processes must call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(whole: Tensor, pattern: Tensor) -> Tensor:
    """`whole`, which every process has, with the device, memory layout and sharding of `pattern`."""
    whole = whole.to(device=pattern.device)
    if isinstance(pattern, DTensor):
        return distribute_tensor(whole.contiguous(), pattern.device_mesh, pattern.placements, src_data_rank=None)
    if whole.shape != pattern.shape or whole.stride() == pattern.stride():
        return whole
    # Fused optimisers read parameter and moments in memory order, so both need the same strides.
    return torch.empty_like(pattern, dtype=whole.dtype, requires_grad=False).copy_(whole)


@torch.no_grad()
def fill(target: Tensor, whole: Tensor) -> None:
    """Copy `whole`, which every process has, into `target`, sharded or not."""
    local(target).copy_(local(like(whole, target)))
