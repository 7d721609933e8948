"""Cascade Mask R-CNN on COCO, 3× schedule with multi-scale training: Table 2 (b) of the paper. It takes any vision model as backbone.

    stepsnet train coco_cascade_mask_rcnn data.root=COCO backbone.weights=RUN
    stepsnet train coco_cascade_mask_rcnn data.root=COCO model=swin_base backbone.weights=RUN detect.norm=sync
    stepsnet train coco_cascade_mask_rcnn data.root=COCO augment.scale=0.1,2.0 augment.short_side=0,0 data.img_size=1024

Data: as for coco_mask_rcnn. The last command trains with large-scale jitter instead: pictures resized by 0.1 to 2.0 times, seen through
a window of 1024.
Settings: 36 epochs of 16 pictures, AdamW 1e-4 falling after epochs 27 and 33, weight decay 0.05, short side 480 to 800. Three
box heads of four convolutions and one fully connected layer with batch norm (detect.norm=sync shares its statistics between GPUs),
three mask heads, IoU 0.5, 0.6 and 0.7.
Time: about four days on 8 GPUs.
Expected, by the paper, of Steps-Swin-T: box AP 51.2, mask AP 44.3 (Swin-T: 50.4, 43.7). Not run here.
"""

from __future__ import annotations

from dataclasses import replace

from stepsnet.data.images.augment import AugmentConfig
from stepsnet.dense.config import DetectConfig
from stepsnet.train.config import ScheduleConfig, TrainConfig
from stepsnet.train.recipes import coco_mask_rcnn


def recipe() -> TrainConfig:
    return replace(
        coco_mask_rcnn.recipe(),
        epochs=36,
        schedule=ScheduleConfig(kind="steps", warmup_iters=500, drops=(27 / 36, 33 / 36)),
        drop_path=0.2,
        detect=DetectConfig(heads="cascade"),
        augment=AugmentConfig(flip=0.5, short_side=(480, 800)),
    )
