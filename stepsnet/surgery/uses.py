"""Uses of a stepified model, tried one by one: hidden states, checkpointing, generation, compile, export, saving.

A use that fails is tried on the plain model too: what the library itself cannot do is not the fault of stepify. The
table of `python -m stepsnet.surgery.support --uses` and the contract tests are made of these functions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.surgery.hosts import Host
from stepsnet.surgery.report import surgery_report
from stepsnet.surgery.saving import RECORD, load, save

DOES_NOT_APPLY = "–"


@dataclass(frozen=True)
class Subject:
    """A model, stepified or plain, with inputs for the part of it that has the blocks. `host` is that of the plain one.
    """

    model: Any
    host: Host
    inputs: tuple[Any, ...]

    @property
    def runs(self) -> Any:
        """The module that takes `inputs`."""
        return self.host.runs

    @property
    def is_transformers(self) -> bool:
        return hasattr(self.model, "config")


def make_subject(model: nn.Module, host: Host) -> Subject:
    """`model` in evaluation mode with random inputs: two of the host's example shape, since a batch norm of a head
    (RepViT) cannot be trained on one."""
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(
        torch.randn(shape, generator=generator)
        if x.is_floating_point()
        else torch.randint(3, 40, shape, generator=generator)
        for x in host.example
        for shape in [(2, *x.shape[1:])]
    )
    return Subject(model.eval(), host, inputs)


def hidden_states(subject: Subject) -> str | None:
    """One state for every block: `hidden_states` of transformers, `forward_intermediates` of timm."""
    stepped = hasattr(subject.model, RECORD)
    blocks = surgery_report(subject.model).blocks_after if stepped else sum(s.depth for s in subject.host.stages)
    if subject.is_transformers:
        states = subject.runs(*subject.inputs, output_hidden_states=True).hidden_states
    elif hasattr(subject.model, "forward_intermediates"):
        _, states = subject.model.forward_intermediates(*subject.inputs)
    else:
        return DOES_NOT_APPLY
    extra = 1 if subject.is_transformers else 0  # the embedding
    if len(subject.host.stages) == 1:
        assert len(states) == blocks + extra + subject.host.stages[0].start
    assert all(state.isfinite().all() for state in states)
    return None


def checkpointing(subject: Subject) -> str | None:
    """Gradient checkpointing gives the same gradients."""
    model, runs = subject.model, subject.runs
    if not getattr(model, "supports_gradient_checkpointing", hasattr(model, "set_grad_checkpointing")):
        return DOES_NOT_APPLY
    enable = model.gradient_checkpointing_enable if subject.is_transformers else model.set_grad_checkpointing
    gradients = []
    for on in (False, True):
        if on:
            enable()
        runs.train()
        runs.zero_grad()
        torch.manual_seed(0)
        output_of(runs(*subject.inputs)).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in runs.named_parameters() if p.grad is not None})
    runs.eval()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
    return None


def generation(subject: Subject) -> str | None:
    """The same tokens without a cache, with a dynamic and with a static one."""
    if not subject.is_transformers or subject.runs is not subject.model or not subject.model.can_generate():
        return DOES_NOT_APPLY
    how = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    x = subject.inputs[0][:, :6]
    expected = subject.model.generate(x, use_cache=False, **how)
    for cache in ({}, {"cache_implementation": "static"}):
        assert torch.equal(subject.model.generate(x, **cache, **how), expected)
    return None


def compiling(subject: Subject) -> str | None:
    """torch.compile(fullgraph=True) captures the model as one graph."""
    torch.compiler.reset()
    with torch.no_grad():
        expected = output_of(subject.runs(*subject.inputs))
        compiled: Any = torch.compile(subject.runs, fullgraph=True, backend="eager")
        torch.testing.assert_close(output_of(compiled(*subject.inputs)), expected, rtol=1e-4, atol=1e-4)
    return None


def exporting(subject: Subject) -> str | None:
    """torch.export, of transformers without a cache."""
    if subject.is_transformers:
        subject.runs.config.use_cache = False
    with torch.no_grad():
        expected = output_of(subject.runs(*subject.inputs))
        program: Any = torch.export.export(subject.runs, subject.inputs, strict=False)
        torch.testing.assert_close(output_of(program.module()(*subject.inputs)), expected, rtol=1e-4, atol=1e-4)
    return None


def saving(subject: Subject) -> str | None:
    """Saved and loaded, the weights are equal, and the outputs within 1e-5."""
    if not hasattr(subject.model, RECORD):
        return DOES_NOT_APPLY
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        save(subject.model, folder)
        again = load(folder).eval()
        other = again.get_submodule(subject.host.prefix.removesuffix(".")) if subject.host.prefix else again
        found, expected = output_of(other(*subject.inputs)), output_of(subject.runs(*subject.inputs))
        own = subject.model.state_dict()
        assert all(torch.equal(tensor, own[name]) for name, tensor in again.state_dict().items())
        assert torch.allclose(found, expected, atol=1e-5)  # mapped weights are aligned differently
    return None


USES: dict[str, Callable[[Subject], str | None]] = {
    "hidden states": hidden_states,
    "checkpointing": checkpointing,
    "generate": generation,
    "compile": compiling,
    "export": exporting,
    "save and load": saving,
}


def output_of(out: Any) -> Tensor:
    """The first tensor of what a model returns."""
    found = out if isinstance(out, Tensor) else out[0] if not isinstance(out, dict) else next(iter(out.values()))
    assert isinstance(found, Tensor)
    return found
