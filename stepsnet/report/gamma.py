"""γ of a whole run as a picture: step across, depth upwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gamma_map(looks: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Figure | None:
    """γ(step, depth) from the lines of gamma.jsonl; None where there are fewer than two, or matplotlib is not installed."""
    if len(looks) < 2 or find_spec("matplotlib") is None:
        return None
    from stepsnet.report.figures import heat_map

    depth = range(1, len(looks[0]["gamma"]) + 1)
    return heat_map(
        [[look["gamma"][block - 1] for look in looks] for block in depth], x=[look["step"] for look in looks], y=list(depth),
        title="γ over training and depth", x_label="step", y_label="block", bar_label="γ = σ(z₀)/σ(z_l)", limits=(0.0, 1.0),
        note=_described(config),
    )  # fmt: skip


def _described(config: Mapping[str, Any]) -> str:
    """What a γ must not be shown without: the model and its initialisation."""
    if not config:
        return ""
    init = (config.get("model_args") or {}).get("init", "own")
    words = (config["model"], f"join {config['join']}", f"initialisation: {'its own' if init == 'own' else init}", f"seed {config['seed']}")
    return ", ".join(words) + "; on validation samples"
