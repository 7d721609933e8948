"""What every test can rely on: one thread of torch, the same random numbers, and no network."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when a library of that hub is imported, hence here
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; messages are not wrapped without a terminal
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the suite runs one process a core

# A slow machine is no reason to fail, every run looks at the same examples, and processes do not share a file of
# failures.
hypothesis.settings.register_profile("stepsnet", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("stepsnet")


def pytest_report_header() -> str:
    """On which instruction set the suite ran; docs/reference/maintainers.md lists them."""
    found, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "none")
    return f"torch {torch.__version__}, kernels: {found}, oneDNN limit: {limit}, threads: {threads}"


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (what a library draws from the global generator shall be the same too)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Tests cannot reach the network; processes of one test can reach each other."""
    connect = socket.socket.connect

    def connect_nearby(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            pytest.fail(f"a test wanted to connect to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_nearby)
        yield
