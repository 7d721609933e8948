"""Anybody's pictures: one folder a class. It takes any vision model.

    stepsnet train image_folder data.root=PICTURES
    stepsnet train image_folder data.root=PICTURES data.img_size=128 model=steps_resnet18 data.strict=true

Data: PICTURES/train/<class>/… and PICTURES/val/<class>/…, or PICTURES/<class>/…, of which a tenth of each class is set aside for
validation (data.valid_fraction). A picture that cannot be read is named, counted and skipped; data.strict=true stops the run instead.
Time: 50 epochs of however many pictures there are. Small sets want fewer pictures a step (batch_size=32) and more epochs.
Expected: from scratch, so a few thousand pictures a class for good results.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=50,
        batch_size=64,
        lr=5e-4,
        workers=2,
        smoothing=0.1,
        data=DataConfig(kind="image_folder", img_size=224, crop_pct=0.875),
        augment=AugmentConfig(crop="resized", crop_min_scale=0.25, flip=0.5, color_jitter=0.3, cutmix=1.0, mix_prob=0.5),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=2),
    )
