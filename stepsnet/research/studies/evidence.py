"""Does depth by steps pay when every arm is trained properly? Studies with a search for each arm's learning rate.

Sizes: `quick` is a trial of the machinery on data that comes with the library; it decides nothing. The others are
registered as evidence, one per data set where there are two. `--dry-run` prints their core-hours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepsnet.report import svg
from stepsnet.research.studies.networks import CIFAR_SHAPE, COLORS, DIGITS_WORDS, JOINS, LABELS, NARROW, WIDE, planned
from stepsnet.research.studies.pages import Charts, gains_over_the_first, loss_over_blocks, losses_over_training
from stepsnet.research.studies.results import RULE, Outcome, Results, contrast
from stepsnet.research.studies.study import Arm, Search, Setting, Size, Study

SEEDS = (0, 1, 2)
RATES = (1e-3, 3e-3, 6e-3)
RIVALS = {
    "layernorm_scaling": "LayerNorm Scaling", "x0_injection": "x0-injection", "hyper": "hyper-connections",
    "rezero": "ReZero", "deepnorm": "DeepNorm",
}  # fmt: skip
DESIGNS = {"layerscale": "LayerScale", **RIVALS}
CIFAR_EPOCH = 50_000 // 128  # steps
DEEP = "residual, twice the depth and cost"
"""Labels the reference of a study at equal cost, which does not have that cost."""


def books(key: str, steps: int) -> Setting:
    """Byte language models on Gutenberg books."""
    words = (
        f"iters={steps}", "batch_size=4", f"schedule.warmup_iters={steps // 20}", "data.valid_windows=512",
        "eval.every=1000", "checkpoint.every=250",
    )  # fmt: skip
    return Setting(
        key, "gutenberg", words, f"Gutenberg books, {steps:,} steps of 4 × 128 bytes",
        {"vocab_size": 256, "seq_len": 128}, "bits_per_byte", data="gutenberg", looks=(1, steps // 20, steps),
        look_every=steps // 20,
    )  # fmt: skip


def cifar(key: str, epochs: int, *model: str, about: str = "") -> Setting:
    """CIFAR-10 with the augmentation of its recipe; ViTs in 8×8 patches unless `model` names another."""
    steps = epochs * CIFAR_EPOCH
    words = (
        *(model or ("model=deit_tiny", "model_args.patch_size=8")), f"iters={steps}", "batch_size=128",
        f"schedule.warmup_iters={steps // 20}", "schedule.warmup_epochs=0", f"eval.every={4 * CIFAR_EPOCH}",
        "eval.batch_size=250", "checkpoint.every=200",
    )  # fmt: skip
    return Setting(
        key, "cifar10", words, f"CIFAR-10, {about or f'{epochs} epochs'} in batches of 128", CIFAR_SHAPE, "top1",
        data="cifar10", looks=(1, steps // 20, steps), look_every=steps // 20,
    )  # fmt: skip


TRIAL_TEXT = Setting(
    "trialtext", "python_docs",
    ("iters=60", "batch_size=8", "data.seq_len=64", "data.valid_windows=64", "schedule.warmup_iters=6", "eval.every=0",
     "checkpoint.every=25"),
    "Python's documentation, 60 steps of 8 × 64 bytes", {"vocab_size": 256, "seq_len": 64}, "bits_per_byte",
    looks=(1, 3, 60),
)  # fmt: skip
TRIAL_IMAGES = Setting(
    "trialimages", "digits",
    ("model=deit_tiny", "model_args.patch_size=4", "data.img_size=8", "iters=60", "schedule.warmup_iters=6",
     *DIGITS_WORDS),
    "scikit-learn's digits in 4×4 patches, 60 steps of 32 images", {"num_classes": 10, "in_chans": 1, "img_size": 8},
    "top1", looks=(1, 3, 60),
)  # fmt: skip
TRIAL_SEARCH = Search((1e-3, 3e-3), ("iters=20", "schedule.warmup_iters=2"))


def search(setting: Setting, rates: tuple[float, ...] = RATES) -> Search:
    """A quarter of the setting's steps at each rate."""
    steps = int(next(word for word in setting.words if word.startswith("iters=")).removeprefix("iters=")) // 4
    return Search(rates, (f"iters={steps}", f"schedule.warmup_iters={steps // 20}", "eval.every=0"))


def tuned_at(depth: int, arms: tuple[Arm, ...], found: Search) -> Search:
    """The search at one depth only; the other depths of a design take its rate."""
    at = {arm.network: arm for arm in arms if arm.blocks == depth}
    return replace(found, tuned_as=lambda arm: at[arm.network])


def network(setting: Setting, name: str, plan: str, design: str = "") -> Arm:
    """A residual network or a Steps network by `name`, with a residual design on top."""
    label = LABELS.get(name, f"Steps, {name} joins")
    arm = planned(setting, name, plan, label, COLORS.get(name, svg.OTHER), join=JOINS.get(name, "plain"))
    if not design:
        return arm
    label = f"{'residual' if name == 'residual' else 'Steps'} + {DESIGNS[design]}"
    color = svg.SERIES[list(DESIGNS).index(design) % len(svg.SERIES)]
    return replace(arm.renamed(f"_{design}", f"model_args.residual={design}"), label=label, color=color)


# `rivals`, `shape` and `joins` share these settings, and so the runs of the networks that they have in common.
DEPTH_BOOKS, DEPTH_IMAGES = books("booksdepth", 2000), cifar("vitdepth", 3)
SHAPE_BOOKS = books("booksshape", 2000)  # wider, so that the head is a small share of the parameters


def pairs(results: Results, hypotheses: Iterable[tuple[str, str, str]]) -> list[Outcome]:
    """Sentence, better network, worse network: at every depth that has both."""
    outcomes = []
    by_name = {(arm.network, arm.blocks): arm.key for arm in results.size.arms}
    depths = sorted({arm.blocks for arm in results.size.arms})
    for sentence, better, worse in hypotheses:
        for blocks in depths:
            if (better, blocks) in by_name and (worse, blocks) in by_name:
                one, other = by_name[better, blocks], by_name[worse, blocks]
                outcomes.append(contrast(results, f"{sentence} ({blocks} blocks)", better=[one], worse=[other]))
    return outcomes


def losses_over_depth(results: Results) -> Charts:
    (setting,) = results.size.settings()
    for training in (True, False):
        yield from loss_over_blocks(results, setting, training=training)


# Table 4 in small: does a Steps language model beat the residual network of half the depth and the same cost?


def table4_arms(setting: Setting, plain: str, deep: str, cut: str) -> tuple[Arm, ...]:
    reference = replace(network(setting, "residual", deep), label=DEEP, color=svg.OTHER)
    joined = (network(setting, name, cut) for name in ("steps", "matched", "matched_grad"))
    return (network(setting, "residual", plain), *joined, reference.renamed("_deep"))


def decide_table4(results: Results) -> list[Outcome]:
    plain, steps, matched, gradient, deep = (arm.key for arm in results.size.arms)
    return [
        contrast(results, f"{sentence} at equal cost", better=[better], worse=[worse])
        for sentence, better, worse in (
            ("Steps with plain joins beats residual", steps, plain),
            ("Steps with matched joins beats residual", matched, plain),
            ("Steps with matched_grad joins beats residual", gradient, plain),
            ("Steps with matched joins beats plain joins", matched, steps),
        )
    ] + [contrast(results, "Residual at twice the cost beats Steps, matched joins", better=[deep], worse=[matched])]


LONG_BOOKS = books("books", 8000)
TABLE4_MINI = Study(
    name="table4_mini",
    title="Language models at equal cost, trained long",
    question="At equal cost, does a Steps language model of twice the depth beat the residual network, and where do "
    "the training curves cross? (Table 4)",
    rule=RULE,
    sizes={
        "quick": Size(
            table4_arms(TRIAL_TEXT, "32x3", "32x6", "16x2, 22x3, 32x1"), (0, 1), "20 cells, core-minutes", TRIAL_SEARCH
        ),
        "full": Size(
            table4_arms(LONG_BOOKS, "96x6", "96x12", "48x6, 64x3, 96x3"), SEEDS, "15 cells of the search and 15",
            search(LONG_BOOKS),
        ),
    },
    decide=decide_table4,
    draw=losses_over_training,
    equal_cost=lambda arm: (arm.setting.key, arm.label == DEEP),
)  # fmt: skip


# Other remedies, alone and on top of Steps. `matched_grad` took the place of `matched` after it had won `joins` on
# language, whose runs it shares, and before any run of a residual network of 48 blocks.


def rival_arms(setting: Setting, blocks: int) -> tuple[Arm, ...]:
    plain, cut = f"32x{blocks}", NARROW[blocks]
    alone = (network(setting, "residual", plain, design) for design in RIVALS)
    above = (network(setting, "steps", cut, design) for design in RIVALS)
    base = (network(setting, "residual", plain), network(setting, "steps", cut), network(setting, "matched_grad", cut))
    return (*base, *alone, *above)


def decide_rivals(results: Results) -> list[Outcome]:
    plain = {"residual": "residual"} | {f"residual_{name}": f"residual + {said}" for name, said in RIVALS.items()}
    steps = ((f"Steps beats {said}", "steps", name) for name, said in plain.items())
    gradient = ((f"Steps with matched_grad joins beats {said}", "matched_grad", name) for name, said in plain.items())
    above = ((f"Steps + {RIVALS[name]} beats Steps", f"steps_{name}", "steps") for name in RIVALS)
    best = ((f"Steps + {RIVALS[name]} beats it alone", f"steps_{name}", f"residual_{name}") for name in RIVALS)
    return pairs(results, (*steps, *gradient, *above, *best))


def rivals_on(setting: Setting) -> Size:
    arms, found = rival_arms(setting, 48), tuned_at(12, rival_arms(setting, 12), search(setting))
    return Size(arms, SEEDS, "39 cells of the search and 39", found)


RIVALS_STUDY = Study(
    name="rivals",
    title="Other remedies, alone and on top of Steps",
    question="At 48 blocks, does Steps beat other remedies for deep residual networks, and does it gain from them?",
    rule=f"{RULE} Learning rates are chosen at 12 blocks.",
    sizes={
        "quick": Size(rival_arms(TRIAL_IMAGES, 6), (0, 1), "52 cells, core-minutes", TRIAL_SEARCH),
        "language": rivals_on(DEPTH_BOOKS),
        "images": rivals_on(DEPTH_IMAGES),
    },
    decide=decide_rivals,
    draw=gains_over_the_first,
)  # fmt: skip


# The order of widths at equal cost and depth. The last network, with `matched_grad` joins, was added when the results
# of the other four on language were known, before its own cells ran. On images its runs are those of `joins`.


def shape_arms(setting: Setting, plain: str, cut: str) -> tuple[Arm, ...]:
    steps = network(setting, "steps", cut)
    turned = {
        "reverse": ("wide to narrow (Eq. 6)", svg.SERIES[5]), "waist": ("wide, narrow, wide", svg.SERIES[4]),
    }  # fmt: skip
    others = (
        replace(steps.renamed(f"_{macro}", f"macro={macro}"), label=label, color=color)
        for macro, (label, color) in turned.items()
    )
    constant = replace(network(setting, "residual", plain), label="constant width")
    gradient = replace(network(setting, "matched_grad", cut), label="narrow to wide, matched_grad joins")
    return (constant, replace(steps, label="narrow to wide (Eq. 5)"), *others, gradient)


def decide_shape(results: Results) -> list[Outcome]:
    return pairs(results, (
        ("Narrow to wide beats constant width", "steps", "residual"),
        ("Narrow to wide beats wide to narrow", "steps", "steps_reverse"),
        ("Narrow to wide beats wide, narrow, wide", "steps", "steps_waist"),
        ("Wide, narrow, wide beats constant width", "steps_waist", "residual"),
        ("Narrow to wide with matched_grad joins beats constant width", "matched_grad", "residual"),
        ("Narrow to wide with matched_grad joins beats wide to narrow", "matched_grad", "steps_reverse"),
    ))  # fmt: skip


SHAPE = Study(
    name="shape",
    title="The order of widths",
    question="At equal MACs and depth, is it the order of the widths that helps, or their variety?",
    rule=RULE,
    sizes={
        "quick": Size(
            shape_arms(TRIAL_IMAGES, "32x12", NARROW[12]), (0, 1), "20 cells, core-minutes", TRIAL_SEARCH
        ),
        "language": Size(
            shape_arms(SHAPE_BOOKS, "64x12", WIDE[12]), SEEDS, "15 cells of the search and 15", search(SHAPE_BOOKS)
        ),
        "images": Size(
            shape_arms(DEPTH_IMAGES, "32x12", NARROW[12]), SEEDS, "15 cells of the search and 15", search(DEPTH_IMAGES)
        ),
    },
    decide=decide_shape,
    draw=gains_over_the_first,
)  # fmt: skip


# The joins


def join_arms(setting: Setting, depths: tuple[int, ...]) -> tuple[Arm, ...]:
    return tuple(network(setting, name, NARROW[blocks]) for blocks in depths for name in JOINS)


def decide_joins(results: Results) -> list[Outcome]:
    others = [name for name in JOINS if name != "steps"]
    return pairs(results, [(f"{JOINS[name]} beats plain", name, "steps") for name in others])


JOINS_TRIAL, JOINS_TEXT, JOINS_IMAGES = (
    join_arms(TRIAL_IMAGES, (6, 12)), join_arms(DEPTH_BOOKS, (12, 48)), join_arms(DEPTH_IMAGES, (12, 48)),
)  # fmt: skip
JOINS_STUDY = Study(
    name="joins",
    title="Five joins, with a learning rate for each",
    question="Of plain, matched, matched_grad (with gradient), unit (both parts of size 1) and matched_down (y "
    "scaled down to x): which join is best on language and on images, at 12 and at 48 blocks?",
    rule=f"{RULE} Learning rates are chosen at 12 blocks. The library keeps the paper's join and the one with the "
    "largest gain over it, averaged over both data sets and both depths.",
    sizes={
        "quick": Size(JOINS_TRIAL, (0, 1), "30 cells, core-minutes", tuned_at(6, JOINS_TRIAL, TRIAL_SEARCH)),
        "language": Size(
            JOINS_TEXT, SEEDS, "15 cells of the search and 30", tuned_at(12, JOINS_TEXT, search(DEPTH_BOOKS))
        ),
        "images": Size(
            JOINS_IMAGES, SEEDS, "15 cells of the search and 30", tuned_at(12, JOINS_IMAGES, search(DEPTH_IMAGES))
        ),
    },
    decide=decide_joins,
    draw=losses_over_depth,
)  # fmt: skip

STUDIES = {
    study.name: study for study in (TABLE4_MINI, RIVALS_STUDY, SHAPE, JOINS_STUDY)
}  # fmt: skip
