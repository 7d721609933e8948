"""Going deeper at fixed width (Table 5a, Figures 1 and 2)."""

from __future__ import annotations

from stepsnet.research.studies.charts import Charts, gammas, loss_over_blocks
from stepsnet.research.studies.networks import COLORS, LABELS, REMEDIES, remedy, residual, steps
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10, DIGITS, GUTENBERG, IMAGENET_DEIT
from stepsnet.research.studies.study import Arm, Setting, Size, Study


def arms(setting: Setting, blocks: int, remedies: tuple[str, ...] = REMEDIES) -> list[Arm]:
    ours = [residual(setting, blocks), steps(setting, blocks), steps(setting, blocks, "matched")]
    return [*ours, *(remedy(setting, blocks, name) for name in remedies)]


def paper_arms(blocks: int, remedies: tuple[str, ...]) -> list[Arm]:
    def arm(name: str, model: str, *words: str) -> Arm:
        return Arm(IMAGENET_DEIT, name, blocks, (f"model={model}_d{blocks}", *words), LABELS[name], COLORS[name])

    ours = [arm("residual", "deit_deep"), arm("steps", "steps_deit_deep"), arm("matched", "steps_deit_deep", "join=matched")]
    return [*ours, *(arm(name, "deit_deep", f"model_args.residual={name}") for name in remedies)]


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        depths = sorted({arm.blocks for arm in results.size.of(setting)})
        least, most = depths[0], depths[-1]

        def at(network: str, blocks: int = most, data: str = setting.key) -> str:
            return f"{data}-{network}-{blocks}"

        where = f"{setting.key}, {most} blocks"
        outcomes.append(contrast(results, f"Steps beats residual ({where})", better=[at("steps")], worse=[at("residual")]))
        outcomes.append(contrast(results, f"Matched joins beat plain joins ({where})", better=[at("matched")], worse=[at("steps")]))
        for name in REMEDIES:
            if results.arm(at(name)):
                sentence = f"Matched Steps beats {LABELS[name]} ({where})"
                outcomes.append(contrast(results, sentence, better=[at("matched")], worse=[at(name)]))
        sentence = f"From {least} to {most} blocks, matched Steps gains more than residual does ({setting.key})"
        before_matched, before_residual = at("matched", least), at("residual", least)
        better, worse = [at("matched"), before_residual], [at("residual"), before_matched]
        outcomes.append(contrast(results, sentence, better=better, worse=worse))
    return outcomes


def draw(results: Results) -> Charts:
    for setting in results.size.settings():
        deepest = max(arm.blocks for arm in results.size.of(setting))
        yield from loss_over_blocks(results, setting)
        yield from loss_over_blocks(results, setting, training=True)
        yield from gammas(results, setting, [arm for arm in results.size.of(setting) if arm.blocks == deepest])


STUDY = Study(
    name="fixed_width",
    title="Going deeper at fixed width",
    question=(
        "At a fixed width and cost per block, does a residual network gain from more depth, does StepsNet, and is the gain more than a "
        "cheap remedy gives? (Table 5a, Figures 1 and 2)"
    ),
    rule=RULE,
    sizes={
        "quick": Size(tuple(arm for blocks in (24, 6) for arm in arms(DIGITS, blocks)), (0, 1), "28 cells, about 5 core-minutes"),
        "long": Size(
            tuple(arm for blocks in (48, 12) for arm in arms(GUTENBERG, blocks, ("layerscale",))), (0, 1, 2),
            "24 cells, about 1.5 core-hours",
        ),
        "full": Size(
            tuple(arm for setting in (GUTENBERG, CIFAR10) for blocks in (96, 48, 24, 12) for arm in arms(setting, blocks)), (0, 1, 2),
            "168 cells, about 12 core-hours; those of long are among them",
        ),
        "paper": Size(
            tuple(arm for blocks in (24, 36, 48, 72, 96) for arm in paper_arms(blocks, REMEDIES if blocks in (24, 48, 96) else ())),
            (0, 1, 2), "81 runs of 300 epochs on ImageNet-1K",
        ),
    },
    decide=decide,
    draw=draw,
)
