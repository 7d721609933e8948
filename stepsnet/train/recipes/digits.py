"""Handwritten digits without a download: scikit-learn's 1797 of 8×8, enlarged to 32×32. It takes any vision model.

    stepsnet train digits
    stepsnet train digits model=test_deit
    stepsnet train digits model=steps_deit_tiny model_args.patch_size=8 iters=100

Data: 1437 digits to train, 360 to validate, in the order of their writers, so that validation has hands not seen in training.
Time: 30 epochs of 1437 digits, about 20 seconds with the default model on one core.
Expected: to be compared with the baseline of equal cost under the same recipe (model=test_deit).
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="classification",
        model="test_steps_deit",
        epochs=30,
        batch_size=64,
        lr=2e-3,
        smoothing=0.1,
        data=DataConfig(kind="digits", img_size=32, crop_pct=1.0),
        augment=AugmentConfig(crop="pad", crop_padding=2),  # no flip: a mirrored 2 is not a 2
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=2),
        eval=EvalConfig(every=110),
    )
