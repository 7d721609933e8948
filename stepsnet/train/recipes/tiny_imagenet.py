"""Tiny ImageNet from scratch: 100,000 pictures of 64×64, 200 classes. It takes any vision model.

    stepsnet train tiny_imagenet data.root=tiny-imagenet-200 workers=4
    stepsnet train tiny_imagenet data.root=tiny-imagenet-200 model=steps_deit_tiny model_args.patch_size=8

Data: the folder as distributed, with wnids in train/ and the validation classes in val/val_annotations.txt.
Time: 100 epochs of 100,000 pictures, a GPU recipe. Not run here.
Expected: to be compared with the baseline of equal cost under the same recipe (model=resnet18).
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=100,
        batch_size=256,
        lr=1e-3,
        workers=4,
        drop_path=0.1,
        smoothing=0.1,
        data=DataConfig(kind="tiny_imagenet", img_size=64, crop_pct=1.0),
        augment=AugmentConfig(crop="resized", crop_min_scale=0.25, flip=0.5, randaugment=9, randaugment_std=0.5, mixup=0.8, cutmix=1.0),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=5),
    )
