"""Anybody's segmentation: pictures, and a mask of the same name each that gives every pixel its class. It takes any vision model.

    stepsnet train mask_folder data.root=FOLDER data.class_names=sky,road,tree
    stepsnet train mask_folder data.root=FOLDER data.masks=trimaps data.mask_values=2,1 data.class_names=background,pet data.void_values=3
    stepsnet train mask_folder data.root=FOLDER data.mask_values=0,1 batch_size=1 model=steps_resnet18

Data: images/ and masks/ (data.images and data.masks name others), split by train.txt and val.txt, or by folders train and val, or by
setting a tenth aside. data.mask_values says which value of the masks is which class, data.void_values which are left out.
Time: 50 epochs of however many pictures there are. A narrow head (segment.channels=64 segment.auxiliary_channels=32) and small pictures
(data.img_size=128) train on a processor.
Expected: docs/results_dense.md has this recipe on pets.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="segmentation",
        model="steps_swin_tiny",
        epochs=50,
        batch_size=8,
        lr=2e-4,
        workers=2,
        data=DataConfig(kind="mask_folder", img_size=512, max_size=2048),
        augment=AugmentConfig(scale=(0.5, 2.0), flip=0.5, color_jitter=0.4),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=100),
    )
