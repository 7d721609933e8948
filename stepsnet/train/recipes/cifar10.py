"""CIFAR-10 from scratch: pad, crop and flip, AdamW, a few epochs. It takes any vision model.

    stepsnet train cifar10 data.root=cifar10.npz
    stepsnet train cifar10 data.root=cifar10.npz model=resnet18
    stepsnet train cifar10 data.root=cifar10.npz model=steps_deit_tiny model_args.patch_size=4

Data: one `.npz` (train_images, train_labels, test_images, test_labels; uint8), or the folder cifar-10-batches-py as distributed.
Pictures are 32×32. data.img_size=64 enlarges them, which suits models whose stem reduces four times.
Time: 20 epochs of 50,000 pictures.
Expected: to be compared with the baseline of equal cost under the same recipe, not with tuned results elsewhere.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=20,
        batch_size=128,
        lr=1e-3,
        smoothing=0.1,
        data=DataConfig(kind="cifar10", img_size=32, crop_pct=1.0),
        augment=AugmentConfig(crop="pad", crop_padding=4, flip=0.5),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=1),
    )
