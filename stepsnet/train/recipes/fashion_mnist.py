"""Fashion-MNIST from scratch: one channel, 28×28 with a black border to 32×32. It takes any vision model.

    stepsnet train fashion_mnist data.root=FOLDER
    stepsnet train fashion_mnist data.root=FOLDER model=steps_deit_tiny model_args.patch_size=4

Data: the four idx files, `.gz` or unpacked, anywhere below FOLDER.
Time: 10 epochs of 60,000 pictures.
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
        epochs=10,
        batch_size=128,
        lr=1e-3,
        smoothing=0.1,
        data=DataConfig(kind="fashion_mnist", img_size=32, crop_pct=1.0),
        augment=AugmentConfig(crop="pad", crop_padding=2, flip=0.5),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=1),
    )
