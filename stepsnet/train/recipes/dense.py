"""Recipes for detection and segmentation. They take any vision model as backbone."""

from __future__ import annotations

from dataclasses import replace

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.dense.config import DetectConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def coco_mask_rcnn() -> TrainConfig:
    """Mask R-CNN on COCO, 1× schedule: Table 2 (a) of the paper. It takes any vision model as backbone.

        stepsnet train coco_mask_rcnn data.root=COCO backbone.weights=RUN
        stepsnet train coco_mask_rcnn data.root=COCO model=swin_small backbone.weights=RUN
        stepsnet train coco_mask_rcnn data.root=COCO model=steps_deit_small batch_size=2 accumulate=2

    Data: COCO as distributed: annotations/instances_{train,val}2017.json, train2017 and val2017 in one folder.
    backbone.weights is the folder of a classification run, or its weights file. Without it the backbone starts from
    scratch, and 12 epochs are too few for that.
    Settings: 12 epochs, 16 images per batch, AdamW 1e-4 divided by ten after epochs 8 and 11, weight decay 0.05, short
    side 800, long side at most 1333, as Swin.
    Time: about a day on 8 GPUs. On a CPU, only for trying out (iters=10).
    Expected, by the paper, for Steps-Swin-T: box AP 44.1, mask AP 40.2 (Swin-T: 43.7, 39.8). Not run here.
    """
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


def coco_cascade_mask_rcnn() -> TrainConfig:
    """Cascade Mask R-CNN on COCO, 3× schedule, multi-scale: Table 2 (b) of the paper. It takes any vision model.

        stepsnet train coco_cascade_mask_rcnn data.root=COCO backbone.weights=RUN
        torchrun --nproc-per-node 8 -m stepsnet train coco_cascade_mask_rcnn parallel=ddp detect.norm=sync data.root=DIR

    Data: as for coco_mask_rcnn. With augment.scale=0.1,2.0 augment.short_side=0,0 data.img_size=1024 it uses
    large-scale jitter: images resized by 0.1 to 2.0 times and cropped to 1024.
    Settings: 36 epochs, 16 images per batch, AdamW 1e-4 divided by ten after epochs 27 and 33, weight decay 0.05, short
    side 480 to 800. Three box heads of four convolutions and one fully connected layer with batch norm
    (detect.norm=sync shares its statistics between GPUs), three mask heads, IoU 0.5, 0.6 and 0.7.
    Time: about four days on 8 GPUs.
    Expected, by the paper, for Steps-Swin-T: box AP 51.2, mask AP 44.3 (Swin-T: 50.4, 43.7). Not run here.
    """
    return replace(
        coco_mask_rcnn(),
        epochs=36,
        schedule=ScheduleConfig(kind="steps", warmup_iters=500, drops=(27 / 36, 33 / 36)),
        drop_path=0.2,
        detect=DetectConfig(heads="cascade"),
        augment=AugmentConfig(flip=0.5, short_side=(480, 800)),
    )


def object_folder() -> TrainConfig:
    """Your own objects: images with boxes, and optionally masks, in COCO's format. It takes any vision model.

        stepsnet train object_folder data.root=FOLDER
        stepsnet train object_folder data.root=FOLDER detect.masks=false data.img_size=480 detect.anchor_scale=4
        stepsnet train object_folder data.root=FOLDER detect.heads=cascade
        stepsnet train object_folder data.root=FOLDER data.annotations=a.json data.valid_annotations=b.json

    Data: a folder with images and two annotation files (annotations_train.json and annotations_val.json, other usual
    names, or those given by data.annotations and data.valid_annotations). Errors in them are reported before the first
    step.
    Small objects need small anchors: detect.anchor_scale is their side in steps of the finest feature map (4 pixels for
    most models).
    Time: 50 epochs of your images. A narrow detector (detect.channels=64 detect.hidden=256 detect.rois=64) with small
    images (data.img_size=256) trains on a CPU.
    Expected: docs/results/dense.md has this recipe on nuclei and on blood cells.
    """
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


def ade20k_upernet() -> TrainConfig:
    """UPerNet on ADE20K: Table 3 of the paper. It takes any vision model as backbone.

        stepsnet train ade20k_upernet data.root=ADE20K backbone.weights=RUN
        torchrun --nproc-per-node 8 -m stepsnet train ade20k_upernet parallel=ddp segment.norm=sync data.root=ADE20K
        stepsnet train ade20k_upernet data.root=ADE20K segment.scales=0.5,1.75,6 segment.flip=true segment.window=512

    Data: ADEChallengeData2016 as distributed: images/{training,validation} and annotations/{training,validation}; 150
    classes, mask value 0 is void. A file classes.txt in the folder may name the classes. backbone.weights is the folder
    of a classification run.
    Settings: 160,000 iterations of 16 crops of 512×512 from images resized by 0.5 to 2 times, AdamW 6e-5, weight decay
    0.01, linear decay after 1,500 iterations of warm-up, an auxiliary head of weight 0.4. The last command evaluates
    with several scales, flipping and a sliding window.
    Time: about a day on 8 GPUs.
    Expected, by the paper, for Steps-Swin-T: mIoU 45.5, mAcc 56.8 (Swin-T: 44.5, 55.6). Not run here.
    """
    return TrainConfig(
        task="segmentation",
        model="steps_swin_tiny",
        iters=160_000,
        batch_size=16,
        lr=6e-5,
        workers=4,
        drop_path=0.2,
        data=DataConfig(
            kind="mask_folder", img_size=512, max_size=2048, mask_values=list(range(1, 151)), void_values=[0, 255]
        ),
        augment=AugmentConfig(scale=(0.5, 2.0), flip=0.5, color_jitter=0.4),
        optim=OptimConfig(name="adamw", weight_decay=0.01),
        schedule=ScheduleConfig(kind="poly", power=1.0, warmup_iters=1500, end=0.0),
        eval=EvalConfig(every=16_000, batch_size=8),
    )


def mask_folder() -> TrainConfig:
    """Your own segmentation: images, each with a mask of class numbers. It takes any vision model.

        stepsnet train mask_folder data.root=FOLDER data.class_names=sky,road,tree
        stepsnet train mask_folder data.root=FOLDER data.masks=trimaps data.mask_values=2,1 data.void_values=3
        stepsnet train mask_folder data.root=FOLDER data.mask_values=0,1 batch_size=1 model=steps_resnet18

    Data: images/ and masks/ with files of the same names (other folders: data.images and data.masks), split by
    train.txt and val.txt, by the folders train and val, or by taking a tenth for validation. data.mask_values lists the
    mask value of each class, data.void_values the values that are ignored.
    Time: 50 epochs of your images. A narrow head (segment.channels=64 segment.auxiliary_channels=32) with small images
    (data.img_size=128) trains on a CPU.
    Expected: docs/results/dense.md has this recipe on pets.
    """
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
