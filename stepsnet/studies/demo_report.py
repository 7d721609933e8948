"""What the demo says about its outcomes: the table, what came out, and what that does and does not show."""

from __future__ import annotations

from pathlib import Path

from stepsnet.report.comparison import Compared, comparison_report
from stepsnet.studies.demo import NETWORKS, Demo, Outcome

COLUMNS = ("network", "params", "MACs", "train loss", "valid. accuracy", "γ start", "γ early", "γ late", "time")


def cells(outcome: Outcome) -> list[str]:
    """One row of the table, without the name."""
    return [
        f"{outcome.params / 1e6:.3f} M", f"{outcome.macs / 1e6:.2f} M", f"{outcome.train_loss:.3f}", f"{100 * outcome.valid['top1']:.1f} %",
        f"{outcome.gamma_start:.2f}", f"{outcome.gamma_early:.2f}", f"{outcome.gamma_late:.2f}", f"{outcome.seconds:.0f} s",
    ]


def findings(demo: Demo) -> list[str]:
    """This seed's result in words."""
    by_key = {outcome.key: outcome for outcome in demo.networks}
    ranked = [by_key[key] for key in demo.ranking()]
    places = ", then ".join(f"{outcome.label} ({100 * outcome.valid['top1']:.1f} %)" for outcome in ranked)
    return [f"Validation accuracy under seed {demo.seed}: first {places}."]


REMARKS = [
    "Equal depth, parameters and multiply-accumulates; the networks differ in how their blocks share the channels, and nothing else.",
]


def write_report(demo: Demo, out: Path) -> Path:
    """report.html beside the run folders."""
    colors = {network.key: network.color for network in NETWORKS}
    networks = [Compared(outcome.label, colors[outcome.key], out / outcome.key, cells(outcome)) for outcome in demo.networks]
    facts = f"{demo.networks[0].blocks} blocks each, seed {demo.seed}, {demo.iters} steps, {demo.seconds:.0f} s in all"
    return comparison_report(
        out / "report.html", "StepsNet: the demo", facts, networks,
        columns=COLUMNS, metric="top1", findings=findings(demo), remarks=REMARKS,
    )
