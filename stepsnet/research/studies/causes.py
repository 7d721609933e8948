"""Why are plain joins behind in our language models? Two likely causes: small embeddings, and small first weights.

Both decide how large the branches of the first blocks are beside the input, and so how large y is beside x at a join.
The embeddings of LLaMA start at deviation 0.02. With `embed_scale=50` the stream starts at size 1 instead, as in models
that multiply embeddings by √C. `init=xavier` makes the first weights of linear layers larger than normal 0.02.
"""

from __future__ import annotations

from dataclasses import replace

from stepsnet.research.studies.evidence import SEEDS, TRIAL_SEARCH, TRIAL_TEXT, books, network, search
from stepsnet.research.studies.pages import gains_over_the_first
from stepsnet.research.studies.results import RULE, Outcome, Results, contrast
from stepsnet.research.studies.study import Arm, Setting, Size, Study

STARTS = {
    "": ("", ()),
    "_unit": (", embeddings of size 1", ("model_args.embed_scale=50",)),
    "_xavier": (", Xavier's weights", ("model_args.init=xavier",)),
}
"""By the ending of an arm's name: what its label says, and its words."""
NETWORKS = ("residual", "steps", "matched_grad")


def cause_arms(setting: Setting, plain: str, cut: str) -> tuple[Arm, ...]:
    """Every network with every start."""
    arms = (network(setting, name, plain if name == "residual" else cut) for name in NETWORKS)
    return tuple(
        replace(arm.renamed(ending, *words), label=arm.label + said)
        for arm in arms for ending, (said, words) in STARTS.items()
    )  # fmt: skip


def decide_causes(results: Results) -> list[Outcome]:
    keys = {arm.network: arm.key for arm in results.size.arms}
    outcomes = []
    for ending, (said, _) in STARTS.items():
        where = said.removeprefix(", ") or "embeddings and weights of deviation 0.02"
        plain, steps, gradient = (keys[name + ending] for name in NETWORKS)
        outcomes += [
            contrast(results, f"Plain joins beat residual, {where}", better=[steps], worse=[plain]),
            contrast(results, f"Matched joins with gradient beat residual, {where}", better=[gradient], worse=[plain]),
        ]
        if ending:
            outcomes.append(contrast(
                results, f"Plain joins gain more than residual from {where}",
                better=[steps, keys["residual"]], worse=[keys["steps"], plain],
            ))  # fmt: skip
    return outcomes


CAUSE_BOOKS = books("bookscauses", 2000)
CAUSES = Study(
    name="causes",
    title="Why plain joins are behind: embeddings and first weights",
    question="Are plain joins behind the residual network because embeddings start small, or because weights do?",
    rule=RULE,
    sizes={
        "quick": Size(cause_arms(TRIAL_TEXT, "32x3", "16x2, 22x3, 32x1"), (0, 1), "36 cells, core-minutes",
                      TRIAL_SEARCH),
        "full": Size(cause_arms(CAUSE_BOOKS, "96x6", "48x6, 64x3, 96x3"), SEEDS, "27 cells of the search and 27",
                     search(CAUSE_BOOKS)),
    },
    decide=decide_causes,
    draw=gains_over_the_first,
    equal_cost=lambda arm: arm.setting.key,
)  # fmt: skip

STUDIES = {CAUSES.name: CAUSES}
