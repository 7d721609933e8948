"""Where the doctor draws its lines, all of them, and why there. A finding prints the line it crossed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Every threshold of the doctor. Most are orders of magnitude: between the healthy and the ill there is usually more than one."""

    gamma: float = 0.2
    """Median γ over depth below which the shortcut counts as degraded. The paper's healthy 122-layer DeiT has 0.5 on average (Sec. 3.1);
    in our own runs of 48 blocks the networks with a median of 0.05 to 0.18 learned less than others of equal cost that kept 0.6 and more
    (docs/demo.md, docs/results_language.md)."""
    gamma_severe: float = 0.05
    """Less than a twentieth of the normalised state is the input: the residual network of 48 blocks that gained nothing from its depth."""
    shallow: int = 16
    """With so few blocks a low γ is reported one degree milder: our 12-block language model learned well at 0.19."""
    update: float = 10.0
    """A block whose branch is ten times its input replaces the state instead of refining it: the shortcut ends there."""
    gradient_span: float = 1e3
    """‖∂L/∂z‖ at the first block over that at the last, or its inverse. Under one clip norm and one learning rate blocks that are three
    orders of magnitude apart cannot both learn; healthy networks here stay within 20."""
    starved: float = 1e-4
    """A block whose weights get less than this share of the median block's gradient is not being trained."""
    idle: float = 0.01
    """A trained block that changes its input by less than 1 % does next to nothing."""
    idle_share: float = 0.25
    """More than a quarter of such blocks: the depth is not used. Fewer are only named."""
    spare: float = 0.05
    """Blocks that change the output by less than 5 % when all of them are left out could be removed. Ten of 1 % each may
    add up to a fifth of the output, as they do after 200 steps in the residual network with LayerScale of `fixed_width`, quick."""
    slice: float = 0.1
    """RMS of a fresh slice over that of what it joins. The next norm divides both by their common deviation, so the slice enters the
    step ten times weaker than the rest (Eq. 2 at the join); the other way round what the steps before have computed is drowned. In the
    runs of docs/results_language.md, seed 0, plain joins come down to 0.08 at 12 blocks and to 0.006 at 48, where they learned least."""
    slice_severe: float = 0.03
    rank: float = 2.0
    """Effective rank of the last state: below 2 nearly all positions differ in one direction only."""
    half_precision: float = 65504.0 / 4
    """A quarter of what fp16 can hold."""
    window: float = 0.1
    """The share of a run over which its first and last loss are averaged."""
    fewest_steps: int = 30
    """Shorter runs are not judged by their curve."""
    fall: float = 0.02
    """A loss that has fallen by less than 2 % has learned nothing."""
    rise: float = 1.2
    """A loss that ends a fifth above its lowest average is getting worse."""
    spike: float = 10.0
    """A gradient norm ten times the median of the 50 before it."""
    clipped: float = 10.0
    """Where the median gradient norm is ten times the clip norm, clipping sets the step, not the learning rate."""
    overfit: float = 1.1
    """A validation loss that ends 10 % above its lowest."""


LIMITS = Limits()
