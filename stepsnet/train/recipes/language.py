"""A byte-level language model on any text files, with the paper's sequence length and batch of 0.128 M tokens.

    stepsnet train language data.root=train.txt.xz data.valid=valid.txt.xz
    stepsnet train language data.root=FOLDER data.pattern='**/*.md' batch_size=64 iters=2000 model_args.embed_dim=192 plan=3

Data: a text file or a folder of them, plain, `.gz` or `.xz`; large plain files stay on disk. Without data.valid the last tenth is
validation. Baseline: model=transformer_30m.
Time: 10,000 steps of 128,000 bytes, a GPU recipe. Not run here.
Expected: bits per byte; the paper's perplexities are per word of a 50,000-word vocabulary and do not compare.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="language",
        model="steps_transformer_30m",
        iters=10_000,
        batch_size=1000,
        lr=1e-3,
        data=DataConfig(kind="text", seq_len=128),
        optim=OptimConfig(name="adamw", weight_decay=0.1, betas=(0.9, 0.95), clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=500, end=0.1),
        eval=EvalConfig(every=1000),
    )
