from __future__ import annotations

import pytest

from stepsnet.cost import Cost
from stepsnet.models import create_model, list_models
from stepsnet.train.config import TrainConfig, customise
from stepsnet.train.recipes import get_recipe


@pytest.mark.parametrize("model", list_models("*transformer_*m"))
def test_wikitext103_is_the_papers_table_4_for_all_six_models(model: str) -> None:
    config = customise(get_recipe("wikitext103"), [f"model={model}", "data.root=somewhere"])
    assert (config.data.kind, config.data.seq_len, config.batch_size * config.data.seq_len) == ("tokens", 128, 128_000)
    made = create_model(config.model, plan=config.plan, device="meta", **config.model_args)
    millions = int(model.rpartition("_")[2][:-1])
    assert sum(parameter.numel() for parameter in made.parameters()) / 1e6 == pytest.approx(millions, abs=1)


def cost(config: TrainConfig) -> tuple[int, Cost]:
    """Parameters without the embedding, and all that is counted."""
    made = create_model(config.model, plan=config.plan, vocab_size=256, device="meta", **config.model_args)
    return sum(parameter.numel() for name, parameter in made.named_parameters() if name != "embed.weight"), made.closed_form()


def test_gutenbergs_two_networks_cost_the_same() -> None:
    steps, total = cost(get_recipe("gutenberg"))
    residual, other = cost(customise(get_recipe("gutenberg"), ["plan=64x48", "model_args.embed_dim=64"]))
    assert total.blocks == other.blocks == 48
    assert steps / residual == pytest.approx(1, abs=0.03)
    assert total.macs / other.macs == pytest.approx(1, abs=0.05)
