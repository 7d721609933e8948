"""Mask R-CNN on COCO, 1× schedule: Table 2 (a) of the paper. It takes any vision model as backbone.

    stepsnet train coco_mask_rcnn data.root=COCO backbone.weights=RUN
    stepsnet train coco_mask_rcnn data.root=COCO model=swin_small backbone.weights=RUN
    stepsnet train coco_mask_rcnn data.root=COCO model=steps_deit_small batch_size=2 accumulate=2

Data: COCO as it is distributed, annotations/instances_{train,val}2017.json, train2017 and val2017 in one folder. backbone.weights is the
folder of a classification run (or a weights file of ours); without it the backbone starts from scratch, which 12 epochs do not make up for.
Settings: 12 epochs of 16 pictures, AdamW 1e-4 falling to a tenth after epochs 8 and 11, weight decay 0.05, short side 800, long side at
most 1333, as Swin trains it.
Time: about a day on 8 GPUs. On a processor this is for trying out (iters=10).
Expected, by the paper, of Steps-Swin-T: box AP 44.1, mask AP 40.2 (Swin-T: 43.7, 39.8). Not run here.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="detection",
        model="steps_swin_tiny",
        epochs=12,
        batch_size=16,
        lr=1e-4,
        workers=4,
        drop_path=0.1,
        data=DataConfig(kind="coco", img_size=800, max_size=1333),
        augment=AugmentConfig(flip=0.5),
        optim=OptimConfig(name="adamw", weight_decay=0.05),
        schedule=ScheduleConfig(kind="steps", warmup_iters=500),
        eval=EvalConfig(batch_size=8),
    )
