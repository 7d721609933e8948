"""Tensors as their patterns lie in memory."""

from __future__ import annotations

import torch

from stepsnet.train.distributed import like


def test_a_moment_read_from_a_file_lies_in_memory_as_its_parameter_does() -> None:
    moment, parameter = torch.arange(54.0).view(2, 3, 3, 3), torch.empty(2, 3, 3, 3).to(memory_format=torch.channels_last)
    found = like(moment, parameter)
    assert found.stride() == parameter.stride()
    assert torch.equal(found, moment)
