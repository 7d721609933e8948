"""Which join should be the default, under two initialisations."""

from __future__ import annotations

from stepsnet.research.studies.charts import Charts, differences, gammas
from stepsnet.research.studies.networks import COLORS, JOINS, LABELS, steps
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import HOLDS, NOT_MADE, REFUTED, RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10, DIGITS, GUTENBERG, IMAGENET_DEIT, PYTHON_DOCS
from stepsnet.research.studies.study import Arm, Setting, Size, Study

FOUR = ("steps", "matched", "matched_grad", "gain")


def arms(setting: Setting, blocks: int, names: tuple[str, ...] = tuple(JOINS), xavier: tuple[bool, ...] = (False, True)) -> list[Arm]:
    return [steps(setting, blocks, name, xavier=other) for other in xavier for name in names]


def paper_arms(blocks: int) -> list[Arm]:
    found = []
    for ending, words, label in (("", (), ""), ("_xavier", ("model_args.init=xavier",), ", Xavier")):
        for name, join in JOINS.items():
            model = (f"model=steps_deit_deep_d{blocks}", *(() if join == "plain" else (f"join={join}",)), *words)
            found.append(Arm(IMAGENET_DEIT, name + ending, blocks, model, LABELS[name] + label, COLORS[name]))
    return found


def decide(results: Results) -> list[Outcome]:
    """Each join against plain in each place, then the default that follows."""
    places = sorted({(arm.setting.key, arm.blocks, arm.network.endswith("_xavier")) for arm in results.size.arms})
    outcomes: list[Outcome] = []
    verdicts: dict[str, list[str]] = {}
    for data, blocks, xavier in places:
        ending = "_xavier" if xavier else ""
        where = f"{data}, {blocks} blocks, {'Xavier' if xavier else 'trunc-normal 0.02'}"
        for name in JOINS:
            key = f"{data}-{name}{ending}-{blocks}"
            if name != "steps" and results.arm(key):
                plain = f"{data}-steps{ending}-{blocks}"
                outcome = contrast(results, f"{JOINS[name]} is better than plain ({where})", better=[key], worse=[plain])
                outcomes.append(outcome)
                verdicts.setdefault(name, []).append(outcome.verdict)
    return [*outcomes, default(verdicts)]


def default(verdicts: dict[str, list[str]]) -> Outcome:
    """The simplest join that is nowhere worse than plain and somewhere better; if there is none, plain stays."""
    if any(NOT_MADE in found for found in verdicts.values()):
        return Outcome("The default join", NOT_MADE)
    fit = [name for name in JOINS if REFUTED not in verdicts.get(name, []) and HOLDS in verdicts.get(name, [])]
    return Outcome("The default join, by the rule", JOINS[fit[0]] if fit else "plain")


def draw(results: Results) -> Charts:
    for setting in results.size.settings():
        for blocks in sorted({arm.blocks for arm in results.size.of(setting)}):
            for xavier in (False, True):
                ending = "_xavier" if xavier else ""
                same = [arm for arm in results.size.of(setting) if arm.blocks == blocks and arm.network.endswith("_xavier") is xavier]
                if same:
                    name = f"joins-{blocks}{ending}"
                    yield from differences(results, setting, f"{setting.key}-steps{ending}-{blocks}", same, name)
                    yield from gammas(results, setting, same, xavier=xavier)


STUDY = Study(
    name="join",
    title="Which join should be the default?",
    question=(
        "How should a fresh slice join: as it is (Eq. 5), brought to the size of what it joins (with or without gradient), or by a learned "
        "gain, starting at 1 or matched? Under two initialisations, at two depths, on two data sets."
    ),
    rule=(
        f"{RULE} The default should be the simplest join that is nowhere worse than plain and somewhere better, in the order plain, "
        "matched, matched_grad, gain, gain_matched; if none is better anywhere, plain stays."
    ),
    sizes={
        "quick": Size((*arms(DIGITS, 24), *arms(PYTHON_DOCS, 12)), (0, 1), "40 cells, about 8 core-minutes"),
        "long": Size(
            (*arms(CIFAR10, 12, FOUR, (False,)), *arms(GUTENBERG, 12, FOUR, (False,))), (0, 1, 2), "24 cells, about 35 core-minutes"
        ),
        "full": Size(
            tuple(arm for setting in (GUTENBERG, CIFAR10) for blocks in (48, 12) for arm in arms(setting, blocks)), (0, 1, 2),
            "120 cells, about 6 core-hours; those of long are among them",
        ),
        "paper": Size((*paper_arms(24), *paper_arms(96)), (0, 1, 2), "60 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide,
    draw=draw,
)
