"""What the paper's three ImageNet recipes share (its appendix): 300 epochs of AdamW with DeiT's augmentation, the same for every family."""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import deit_augment
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def imagenet(*, model: str, drop_path: float, clip: float) -> TrainConfig:
    """Learning rate 1e-3 for 1024 pictures, scaled linearly; from 1e-6 over 20 epochs of warm-up, by cosine down to 1e-5."""
    return TrainConfig(
        task="classification",
        model=model,
        epochs=300,
        batch_size=1024,
        lr=1e-3,
        workers=8,
        precision="bf16",
        drop_path=drop_path,
        smoothing=0.1,
        data=DataConfig(kind="image_folder", img_size=224, crop_pct=0.875),
        augment=deit_augment(),
        optim=OptimConfig(name="adamw", lr_batch=1024, weight_decay=0.05, clip=clip),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=20, start=1e-3, end=1e-2),
    )
