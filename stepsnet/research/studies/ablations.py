"""The paper's ablations: Tables 6 to 11."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from stepsnet.report import svg
from stepsnet.report.chart import BarChart, Line, LineChart
from stepsnet.report.table import Table
from stepsnet.research.studies.networks import (
    CIFAR10,
    CIFAR10_SWIN,
    DIGITS,
    DIGITS_SWIN,
    IMAGENET_DEIT,
    IMAGENET_SWIN,
    in_steps,
    planned,
    steps_color,
    steps_label,
)
from stepsnet.research.studies.pages import Charts, gains_over_the_first, loss_over_blocks, seeds_in_words, spans_of
from stepsnet.research.studies.results import (
    RULE,
    CellResult,
    Outcome,
    Results,
    contrast,
    mean_and_error,
    paired,
    with_error,
)
from stepsnet.research.studies.study import Arm, Setting, Size, Study

SEEDS = (0, 1, 2)
NUMBERS = (1, 2, 3, 4, 5)


# The number of steps (Table 8)


def paper_in_steps(number: int) -> Arm:
    words = ("model=deit_small", f"plan={number}")
    label, color = steps_label(number), steps_color(number)
    return Arm(IMAGENET_DEIT, f"{number}steps", 6 + 6 * number, words, label, color)


def decide_steps(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        keys = {int(arm.network[0]): arm.key for arm in results.size.of(setting)}
        for many, few in ((2, 1), (3, 1), (5, 1), (5, 3)):
            sentence = f"{many} steps beat {few} ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[keys[many]], worse=[keys[few]]))
    return outcomes


def draw_steps(results: Results) -> Charts:
    for setting in results.size.settings():
        yield from loss_over_blocks(results, setting, one_line="1 to 5 steps")


STEPS = Study(
    name="steps",
    title="The number of steps",
    question="Is a network better when the same computation is in more steps, each deeper and narrower? (Table 8)",
    rule=RULE,
    sizes={
        "quick": Size(tuple(in_steps(DIGITS, n) for n in NUMBERS), SEEDS, "15 cells, about 3 core-minutes"),
        "full": Size(tuple(in_steps(CIFAR10, n) for n in NUMBERS), SEEDS, "15 cells, about 1 core-hour"),
        "paper": Size(tuple(paper_in_steps(n) for n in NUMBERS), SEEDS, "15 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide_steps,
    draw=draw_steps,
    equal_cost=lambda arm: arm.setting.key,
)


# Computation allocated to the steps (Table 9): depths (D1, D2, D3) at widths C/2, C/√2 and C. A number is that of the
# arm of `steps` that is the same network; the first is the plain one.

Depths = tuple[int, int, int]
HALF = {(0, 0, 6): 1, (2, 1, 5): 0, (4, 2, 4): 0, (6, 3, 3): 3, (8, 4, 2): 0, (10, 5, 1): 0}
WHOLE = {(0, 0, 12): 1, (2, 1, 11): 0, (6, 3, 9): 0, (12, 6, 6): 3, (18, 9, 3): 0, (22, 11, 1): 0}


def allocation_arms(setting: Setting, widths: Depths, allocations: dict[Depths, int]) -> list[Arm]:
    found = []
    for depths, number in allocations.items():
        plan = ", ".join(f"{width}x{depth}" for width, depth in zip(widths, depths, strict=True))
        name = f"alloc_{'_'.join(map(str, depths))}"
        arm = in_steps(setting, number) if number else planned(setting, name, plan, "")
        found.append(replace(arm, label=_depths(depths)))
    return found


def allocation_paper_arms() -> list[Arm]:
    found = []
    for (d1, d2, d3), number in WHOLE.items():
        name = f"{number}steps" if number else f"alloc_{d1}_{d2}_{d3}"
        words = ("model=deit_small", f"plan={number or f'192x{d1}, 272x{d2}, 384x{d3}'}")
        found.append(Arm(IMAGENET_DEIT, name, d1 + d2 + d3, words, _depths((d1, d2, d3))))
    return found


def _depths(depths: Depths) -> str:
    return f"({', '.join(map(str, depths))})"


def decide_allocation(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        plain, *others = results.size.of(setting)
        even = next(arm for arm in others if arm.network == "3steps")
        for better, worse in (*((arm, plain) for arm in others), (even, others[0]), (even, others[-1])):
            sentence = f"{better.label} beats {worse.label} ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[better.key], worse=[worse.key]))
    return outcomes


def draw_allocation(results: Results) -> Charts:
    for setting in results.size.settings():
        label = "allocations, from all in the widest step to almost none"
        yield from loss_over_blocks(results, setting, one_line=label)
    yield from gains_over_the_first(results)


ALLOCATION = Study(
    name="allocation",
    title="Computation allocated to narrow and wide steps",
    question="Of three steps of equal total cost, how much should be in the narrow, deep ones? (Table 9)",
    rule=RULE,
    sizes={
        "quick": Size(
            tuple(allocation_arms(DIGITS, (32, 46, 64), HALF)), SEEDS,
            "18 cells, 6 of them those of steps, about 3 core-minutes",
        ),
        "full": Size(
            tuple(allocation_arms(CIFAR10, (64, 90, 128), WHOLE)), SEEDS,
            "18 cells, 6 of them those of steps, about 1 core-hour",
        ),
        "paper": Size(
            tuple(allocation_paper_arms()), SEEDS, "18 runs of 300 epochs on ImageNet-1K, 6 of them those of steps"
        ),
    },
    decide=decide_allocation,
    draw=draw_allocation,
    equal_cost=lambda arm: arm.setting.key,
)  # fmt: skip


# Narrow to wide, or wide to narrow (Table 10, Eq. 6)


def reverse_arms(setting: Setting) -> tuple[Arm, ...]:
    return in_steps(setting, 1), in_steps(setting, 3), reversed_arm(in_steps(setting, 3))


def reverse_paper_arms() -> tuple[Arm, ...]:
    plain = Arm(IMAGENET_SWIN, "residual", 12, ("model=swin_tiny",), "Swin-T", svg.RESIDUAL)
    forward = Arm(IMAGENET_SWIN, "steps", 26, ("model=steps_swin_tiny",), "Steps-Swin-T")
    return plain, forward, reversed_arm(forward)


def reversed_arm(forward: Arm) -> Arm:
    """The same plan from wide to narrow."""
    label = f"{forward.label}, reversed"
    return replace(forward.renamed("_reverse", "macro=reverse"), label=label, color=svg.OTHER)


def decide_reverse(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        plain, forward, reverse = results.size.of(setting)
        for sentence, better, worse in (
            ("Narrow to wide beats wide to narrow", forward, reverse),
            ("Wide to narrow beats the plain network", reverse, plain),
        ):
            outcomes.append(contrast(results, f"{sentence} ({setting.key})", better=[better.key], worse=[worse.key]))
    return outcomes


REVERSE = Study(
    name="reverse",
    title="The reverse design",
    question="Do steps help because they go from narrow to wide, or do the same blocks from wide to narrow as well? "
    "(Table 10)",
    rule=RULE,
    sizes={
        "quick": Size(reverse_arms(DIGITS), SEEDS, "9 cells, 6 of them those of steps, about 2 core-minutes"),
        "full": Size(reverse_arms(CIFAR10), SEEDS, "9 cells, 6 of them those of steps, about half a core-hour"),
        "paper": Size(reverse_paper_arms(), SEEDS, "9 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide_reverse,
    draw=gains_over_the_first,
    equal_cost=lambda arm: arm.setting.key,
)


# The stages of a Swin with steps (Table 11). Stage 4 in steps ends √2 narrower, as the paper's (Table 14): then its
# cost is that of two blocks of full width.

PLAIN = (2, 2, 6, 2)
CUT = {
    16: ("12x2, 16x1", "22x2, 32x1", "32x6, 46x3, 64x3", "32x4, 46x2, 64x2, 90x2"),
    32: ("22x2, 32x1", "46x2, 64x1", "64x6, 90x3, 128x3", "64x4, 90x2, 128x2, 180x2"),
    96: ("68x2, 96x1", "136x2, 192x1", "192x6, 272x3, 384x3", "192x4, 272x2, 384x2, 544x2"),
}
CHOICES = {"none": (), "stage 1": (0,), "stage 2": (1,), "stage 3": (2,), "stage 4": (3,), "stages 3 and 4": (2, 3)}


def stage_arms(setting: Setting, base: int) -> tuple[Arm, ...]:
    found = []
    for label, cut in CHOICES.items():
        stages = [CUT[base][at] if at in cut else f"{base * 2**at}x{depth}" for at, depth in enumerate(PLAIN)]
        blocks = sum(int(step.rpartition("x")[2]) for stage in stages for step in stage.split(","))
        name = "cut_" + "".join(str(stage + 1) for stage in cut) if cut else "residual"
        words = (f"plan={'; '.join(stages)}", f"model_args.embed_dim={base}")
        found.append(Arm(setting, name, blocks, words, label, svg.STEPS if cut else svg.RESIDUAL))
    return tuple(found)


def stage_paper_arms() -> tuple[Arm, ...]:
    """The same with the registered models; two are also in other studies and have their names."""
    known = {"residual": ("residual", ("model=swin_tiny",)), "cut_34": ("steps", ("model=steps_swin_tiny",))}
    found = []
    for arm in stage_arms(IMAGENET_SWIN, 96):
        name, words = known.get(arm.network, (arm.network, ("model=swin_tiny", arm.words[0])))
        found.append(replace(arm, network=name, words=words))
    return tuple(found)


def decide_stages(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        plain, *others = results.size.of(setting)
        for arm in others:
            sentence = f"Steps in {arm.label} beat none ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[arm.key], worse=[plain.key]))
        *_, fourth, both = others
        sentence = f"Steps in {both.label} beat those in {fourth.label} alone ({setting.key})"
        outcomes.append(contrast(results, sentence, better=[both.key], worse=[fourth.key]))
    return outcomes


STAGES = Study(
    name="stages",
    title="Steps at different stages of Swin",
    question="Which stages of a network of four resolutions gain from steps? (Table 11)",
    rule=RULE,
    sizes={
        "quick": Size(stage_arms(DIGITS_SWIN, 16), SEEDS, "18 cells, about 3 core-minutes"),
        "full": Size(stage_arms(CIFAR10_SWIN, 32), SEEDS, "18 cells, about 2 core-hours"),
        "paper": Size(stage_paper_arms(), SEEDS, "18 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide_stages,
    draw=gains_over_the_first,
    equal_cost=lambda arm: arm.setting.key,
)


# Trained Steps models without a part (Tables 6 and 7): the three-step runs of `steps`, not trained again

TRAINED = {
    "quick": Size((in_steps(DIGITS, 3),), SEEDS, "the 3 cells of steps that have three steps, under a core-minute"),
    "full": Size((in_steps(CIFAR10, 3),), SEEDS, "the 3 cells of steps that have three steps"),
    "paper": Size((paper_in_steps(3),), SEEDS, "3 runs of 300 epochs"),
}


def slow_less_fast(cell: CellResult) -> float:
    """The loss with the most slow channels masked, less that with as many fast channels masked."""
    found = cell.probes["paths"]["loss"]
    return float(found["slow"][-1] - found["fast"][-1])


def decide_paths(results: Results) -> list[Outcome]:
    sentence = "Masking slow channels hurts more than masking as many fast ones"
    return [paired(results, f"{sentence} ({arm.setting.key})", arm.key, slow_less_fast) for arm in results.size.arms]


def path_tables(results: Results) -> Iterator[Table]:
    for arm in results.size.arms:
        cells = [cell.probes["paths"] for cell in results.finished(arm)]
        for metric in cells[0] if cells else ():
            sizes = cells[0][metric]["sizes"]
            rows = [
                [f"{path} path", *(with_error([cell[metric][path][at] for cell in cells]) for at in range(len(sizes)))]
                for path in ("slow", "fast")
            ]
            columns = ["", *(f"n = {size}" for size in sizes)]
            yield Table(columns, rows, f"{arm.key}: {metric} with n channels of x set to zero")


def draw_paths(results: Results) -> Charts:
    for arm in results.size.arms:
        cells = [cell.probes["paths"]["loss"] for cell in results.finished(arm)]
        if cells:
            lines = []
            for path, where in (("slow", "the first"), ("fast", "the last")):
                along = [mean(values) for values in zip(*(cell[path] for cell in cells), strict=True)]
                lines.append(Line(f"{path} path: {where} n", cells[0]["sizes"], along))
            yield f"{arm.setting.key}-paths", LineChart(
                lines=lines, title=f"Slow and fast path masked: {arm.setting.key}", x_label="channels of x set to zero",
                y_label="validation loss (nats)", note=_trained_note(arm, len(cells)),
            )  # fmt: skip


def _trained_note(arm: Arm, seeds: int) -> str:
    return f"{arm.setting.about}; {arm.label}; mean over {seeds_in_words([seeds])}; no retraining"


PATHS = Study(
    name="paths",
    title="Slow and fast path",
    question="Does a trained StepsNet depend more on the channels that pass all steps than on those that join late? "
    "(Table 6)",
    rule=f"{RULE} Here the difference is within each trained model, at the largest number of masked channels.",
    sizes=TRAINED,
    decide=decide_paths,
    draw=draw_paths,
    tables=path_tables,
    probes=("paths",),
)


def decide_drops(results: Results) -> list[Outcome]:
    outcomes = []
    for arm in results.size.arms:
        for early, late in ((1, 3), (1, 2), (2, 3)):  # row 0 is the whole network

            def difference(cell: CellResult, early: int = early, late: int = late) -> float:
                found = cell.probes["drops"]["loss"]["metric"]
                return float(found[early] - found[late])

            sentence = f"Dropping in step {early} hurts more than dropping as much in step {late} ({arm.setting.key})"
            outcomes.append(paired(results, sentence, arm.key, difference))
    return outcomes


def drop_tables(results: Results) -> Iterator[Table]:
    for arm in results.size.arms:
        cells = [cell.probes["drops"] for cell in results.finished(arm)]
        if not cells:
            continue
        first = next(iter(cells[0].values()))
        rows = [
            [step, str(first["dropped"][at]), f"{100 * first['share'][at]:.1f} %",
             *(with_error([cell[metric]["metric"][at] for cell in cells]) for metric in cells[0])]
            for at, step in enumerate(first["steps"])
        ]  # fmt: skip
        columns = ["step", "blocks dropped", "of all blocks' parameters", *cells[0]]
        yield Table(columns, rows, f"{arm.key}: the last blocks of one step left out")


def draw_drops(results: Results) -> Charts:
    for arm in results.size.arms:
        cells = [cell.probes["drops"]["loss"] for cell in results.finished(arm)]
        if cells:
            found = [mean_and_error([cell["metric"][at] for cell in cells]) for at in range(len(cells[0]["metric"]))]
            dropped = zip(cells[0]["steps"], cells[0]["dropped"], strict=True)
            labels = [f"{step}: {count} block{'s' * (count > 1)}" if count else step for step, count in dropped]
            yield f"{arm.setting.key}-drops", BarChart(
                labels=labels, values=[centre for centre, _ in found], spans=spans_of(found),
                title=f"Equal computation dropped in each step: {arm.setting.key}",
                x_label="validation loss (nats)", note=_trained_note(arm, len(cells)),
            )  # fmt: skip


DROPS = Study(
    name="drops",
    title="The contribution of each step",
    question="Does a trained StepsNet lose more when computation is removed from its narrow, early steps? (Table 7)",
    rule=f"{RULE} Here the difference is within each trained model.",
    sizes=TRAINED,
    decide=decide_drops,
    draw=draw_drops,
    tables=drop_tables,
    probes=("drops",),
)

STUDIES = {study.name: study for study in (STEPS, ALLOCATION, REVERSE, STAGES, PATHS, DROPS)}
