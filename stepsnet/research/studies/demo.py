"""The demo: a study of three deep networks of equal depth, parameters and MACs, on data that needs no download.

`stepsnet demo` runs it under one seed, `stepsnet study demo` under the seeds of the confirmation. The setting was
chosen on seeds 0 and 1 and confirmed on other seeds; docs/results/demo.md lists all trials.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.files import write_json
from stepsnet.report.run import Compared, comparison_report, run_report
from stepsnet.research.studies.networks import COLORS, DIGITS_WORDS, NARROW, planned
from stepsnet.research.studies.pages import gains_over_the_first
from stepsnet.research.studies.results import RULE, Outcome, Results, contrast
from stepsnet.research.studies.study import Arm, Cell, Setting, Size, Study
from stepsnet.runs.folder import METRICS, read_lines

if TYPE_CHECKING:
    from stepsnet.research.studies.runner import StudyFiles

ITERS = 400
WORKERS = 2
"""Cells at a time; a third would need more than 2 GB of memory."""
COLUMNS = (
    "network", "params", "MACs", "train loss", "valid. accuracy", "γ start", "γ early", "γ late", "time",
)  # fmt: skip
REMARKS = (
    ("Confirmed on seeds 10 to 14, which were not used to choose the setting: both StepsNets were ahead of the "
     "residual network on 5 of 5 seeds, and matched_grad joins ahead of Eq. 5 on 5 of 5. Validation accuracy (mean ± "
     "standard error): residual 33.6 ± 3.5 %, Eq. 5 70.1 ± 4.0 %, matched_grad 82.0 ± 1.7 %. Only that matched_grad "
     "joins are ahead of the residual network is claimed for other seeds."),
    ("What it shows: in nine epochs a residual network of 48 blocks learns little; a StepsNet of equal depth, "
     "parameters and computation learns much more. It also shows γ, the share of the input in the state after every "
     "block; channels that wait for later steps count."),
    ("What it does not show: that any of them is a good classifier of digits, that the gap remains with longer "
     "training or other settings (with patches of 4×4 it nearly vanishes), or anything about large images and large "
     "models. docs/results/demo.md lists all trials."),
)


def arms(iters: int = ITERS, residual: str = "32x48", steps: str = NARROW[48]) -> tuple[Arm, ...]:
    """The three networks. They differ in plan and join only."""
    tenth = max(1, iters // 10)
    words = (
        "model=deit_tiny", "model_args.patch_size=2", "data.img_size=8", "device=cpu", *DIGITS_WORDS, f"iters={iters}",
        f"schedule.warmup_iters={iters // 10}", f"eval.every={tenth}", "eval.batch_size=64", "checkpoint.every=50",
    )  # fmt: skip
    setting = Setting(
        "demo", "digits", words, f"scikit-learn's digits, 8×8 in 2×2 patches, {iters} steps of 32 images",
        {"num_classes": 10, "in_chans": 1, "img_size": 8}, "top1", looks=(tenth, iters), look_every=tenth,
    )  # fmt: skip
    return (
        planned(setting, "residual", residual, "plain residual network", COLORS["residual"]),
        planned(setting, "steps", steps, "StepsNet (Eq. 5)", COLORS["steps"]),
        planned(setting, "matched_grad", steps, "StepsNet, matched_grad joins", COLORS["matched"], join="matched_grad"),
    )


def decide(results: Results) -> list[Outcome]:
    residual, steps, matched = (arm.key for arm in results.size.arms)
    return [
        contrast(results, f"{better} beats the residual network", better=[key], worse=[residual])
        for better, key in (("StepsNet with matched_grad joins", matched), ("StepsNet (Eq. 5)", steps))
    ]


def demo_study(seeds: tuple[int, ...], networks: tuple[Arm, ...]) -> Study:
    return Study(
        name="demo",
        title="Three deep networks of equal cost",
        question="Does a StepsNet of 48 blocks learn more in nine epochs than a residual network of equal cost?",
        rule=RULE,
        sizes={"quick": Size(networks, seeds, f"{3 * len(seeds)} cells, about {3 * len(seeds)} core-minutes")},
        decide=decide,
        draw=gains_over_the_first,
    )


STUDIES = {"demo": demo_study((10, 11, 12, 13, 14), arms())}


def summary(results: Results, seconds: float) -> dict[str, Any]:
    """The object of `stepsnet demo --json`; all cells of the one seed have finished. γ are means over depth."""
    (seed,) = results.size.seeds
    networks = []
    for arm in results.size.arms:
        (cell,), cost, config = results.finished(arm), arm.cost(), arm.config(seed)
        start, early, late = cell.gamma.values()
        networks.append({
            "key": arm.network, "label": arm.label, "plan": config.plan, "join": config.join, "blocks": cost.blocks,
            "params": cost.params, "macs": cost.macs, "train_loss": cell.train_loss, "valid": cell.valid,
            "gamma_start": start, "gamma_early": early, "gamma_late": late,
            "seconds": sum(line["seconds"] for line in read_lines(results.pool / cell.cell / METRICS)),
        })  # fmt: skip
    ranked = sorted(networks, key=lambda network: (-network["valid"]["top1"], network["train_loss"]))
    found = {"seed": seed, "iters": results.size.arms[0].steps(), "seconds": seconds, "networks": networks,
             "ranking": [network["key"] for network in ranked]}  # fmt: skip
    return {**found, "findings": findings(found)}


def findings(found: dict[str, Any]) -> list[str]:
    """The result under this seed, and whether it agrees with the confirmation."""
    networks = {network["key"]: network for network in found["networks"]}
    ranked = [networks[key] for key in found["ranking"]]
    places = ", then ".join(f"{network['label']} ({100 * network['valid']['top1']:.1f} %)" for network in ranked)
    agrees = found["ranking"].index("matched_grad") < found["ranking"].index("residual")
    claim = "StepsNet with matched_grad joins is ahead of the residual network of equal depth and cost."
    return [
        f"Validation accuracy under seed {found['seed']}: first {places}.",
        f"As in the confirmation, {claim}" if agrees else f"This differs from the confirmation, in which {claim}",
    ]


def row(network: dict[str, Any]) -> list[str]:
    """One row of the table."""
    return [
        network["label"], f"{network['params'] / 1e6:.3f} M", f"{network['macs'] / 1e6:.2f} M",
        f"{network['train_loss']:.3f}", f"{100 * network['valid']['top1']:.1f} %",
        *(f"{network[f'gamma_{when}']:.2f}" for when in ("start", "early", "late")), f"{network['seconds']:.0f} s",
    ]  # fmt: skip


def write_report(place: StudyFiles, found: dict[str, Any]) -> Path:
    """report.html and demo.json beside the cells, and report.html in each cell."""
    networks = []
    for arm, network in zip(place.chosen().arms, found["networks"], strict=True):
        folder = place.pool / Cell(arm, found["seed"]).id
        run_report(folder)
        networks.append(Compared(arm.label, arm.color, folder, row(network)[1:]))
    write_json(place.out / "demo.json", found)
    blocks, steps = found["networks"][0]["blocks"], found["iters"]
    facts = f"{blocks} blocks each, seed {found['seed']}, {steps} steps, {found['seconds']:.0f} s in all"
    return comparison_report(
        place.out / "report.html", "StepsNet: the demo", facts, networks,
        columns=COLUMNS, metric="top1", findings=found["findings"], remarks=REMARKS,
    )  # fmt: skip
