"""The paper's Table 4: language models of 30, 44 and 63 M parameters on WikiText-103, sequence 128, 0.128 M tokens a batch.

    stepsnet prepare-text wiki.train.raw wiki.valid.raw wiki.test.raw --vocab 50000 --out wikitext103
    stepsnet prepare-text Salesforce/wikitext --vocab 50000 --out wikitext103
    stepsnet train wikitext103 data.root=wikitext103
    stepsnet train wikitext103 data.root=wikitext103 model=transformer_30m

The second command fetches the text from the hub instead of reading WikiText-103's raw files.
Models: transformer_30m, transformer_44m, transformer_63m, and steps_transformer_… of each; the last command is a baseline.
Data: what `stepsnet prepare-text` wrote; validation is its part "valid" (data.valid=test for the other), data.stride=64 slides the window.
Time: 20 epochs, about 19,000 steps of 128,000 tokens: a GPU recipe. Not run here.
Expected: the paper prints perplexities of 24.39, 24.00 and 21.64 for the Steps models against 25.28, 24.45 and 22.05. It does not say how
its 50,000 tokens were made, nor whether a perplexity is per token or per word; we report both, and they do not compare with each other.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="language",
        model="steps_transformer_30m",
        epochs=20,
        batch_size=1000,
        lr=1e-3,
        data=DataConfig(kind="tokens", seq_len=128),
        optim=OptimConfig(name="adamw", weight_decay=0.1, betas=(0.9, 0.95), clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=500, end=0.1),
    )
