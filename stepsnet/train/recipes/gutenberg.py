"""A small byte-level language model on English books: residual, Steps, or Steps with matched joins at equal cost.

    stepsnet train gutenberg data.root=FOLDER
    stepsnet train gutenberg data.root=FOLDER join=matched
    stepsnet train gutenberg data.root=FOLDER plan=64x48 model_args.embed_dim=64
    stepsnet prepare-text FOLDER/gutenberg_train.txt.xz FOLDER/gutenberg_valid.txt.xz --out tokens --vocab 8000 \\
        --leave-out gutenberg_valid.txt.xz:0-438856
    stepsnet train gutenberg data.kind=tokens data.root=tokens

Data: `gutenberg_{train,valid,test}.txt.xz`, 130 + 5 + 5 books. Validation leaves out the characters that train has too, and takes 1024
windows spread over the rest (data.valid_windows=0: all; data.stride=32: sliding). data.valid=test measures on test.
Model: 48 blocks in seven steps, 2.4 M parameters. The third command is the residual network of the same depth and cost (parameters
without embedding within 1 %, MACs within 4 %). The last two put a BPE in the place of bytes.
Time: 400 steps of 4096 bytes, about 10 minutes on one core.
Expected: see docs/results.md.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="language",
        model="transformer_30m",
        plan="16x12, 24x6, 32x6, 48x6, 64x6, 90x6, 128x6",
        model_args={"embed_dim": 128},
        iters=400,
        batch_size=32,
        lr=2e-3,
        data=DataConfig(kind="gutenberg", seq_len=128, valid_windows=1024),
        optim=OptimConfig(name="adamw", weight_decay=0.1, betas=(0.9, 0.95), clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=40, end=0.1),
        eval=EvalConfig(every=0, batch_size=64),
    )
