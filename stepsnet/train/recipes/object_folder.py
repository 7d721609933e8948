"""Anybody's objects: pictures with boxes, and masks if there are any, annotated in COCO's format. It takes any vision model as backbone.

    stepsnet train object_folder data.root=FOLDER
    stepsnet train object_folder data.root=FOLDER detect.masks=false data.img_size=480 detect.anchor_scale=4
    stepsnet train object_folder data.root=FOLDER detect.heads=cascade data.annotations=a.json data.valid_annotations=b.json

Data: a folder with pictures and two files of annotations (annotations_train.json and annotations_val.json, or other usual names, or
named by data.annotations and data.valid_annotations). What is wrong with them is said before the first step.
Small objects want small anchors: detect.anchor_scale is their side in steps of the finest map (4 pixels for most models).
Time: 50 epochs of however many pictures there are. A narrow detector (detect.channels=64 detect.hidden=256 detect.rois=64) and small
pictures (data.img_size=256) train on a processor.
Expected: docs/results_dense.md has this recipe on nuclei and on blood cells.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="detection",
        model="steps_swin_tiny",
        epochs=50,
        batch_size=4,
        lr=2e-4,
        workers=2,
        data=DataConfig(kind="coco", img_size=512, max_size=1024),
        augment=AugmentConfig(flip=0.5),
        optim=OptimConfig(name="adamw", weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup_iters=100),
    )
