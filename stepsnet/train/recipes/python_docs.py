"""A small byte-level language model without a download: the documentation of the Python that is running, about 2 MB.

    stepsnet train python_docs
    stepsnet train python_docs plan=none

Data: documentation strings of the standard library and the pages of `help()`, split by module and topic without overlap. The text is
another with another version of Python: compare within one version only.
The model is the paper's language model, 128 wide instead of 384: three steps, or with plan=none the plain residual network of equal cost.
Time: 1000 steps of 4096 bytes, minutes on 2 cores.
Expected: bits per byte, to be compared with plan=none under the same recipe.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="language",
        model="transformer_30m",
        plan=3,
        model_args={"embed_dim": 128},
        iters=1000,
        batch_size=32,
        lr=2e-3,
        data=DataConfig(kind="python_docs", seq_len=128),
        optim=OptimConfig(name="adamw", weight_decay=0.1, betas=(0.9, 0.95), clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=100, end=0.1),
        eval=EvalConfig(every=250),
    )
