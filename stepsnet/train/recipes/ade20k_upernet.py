"""UPerNet on ADE20K: Table 3 of the paper. It takes any vision model as backbone.

    stepsnet train ade20k_upernet data.root=ADEChallengeData2016 backbone.weights=RUN
    stepsnet train ade20k_upernet data.root=ADEChallengeData2016 model=swin_tiny backbone.weights=RUN segment.norm=sync
    stepsnet train ade20k_upernet data.root=ADEChallengeData2016 segment.scales=0.5,1.75,6 segment.flip=true segment.window=512

Data: images/{training,validation} and annotations/{training,validation}; 150 classes, the value 0 of the masks is void. A file classes.txt
in the folder may give the classes their names. backbone.weights is the folder of a classification run.
Settings: 160,000 iterations of 16 crops of 512×512 from pictures resized by 0.5 to 2 times, AdamW 6e-5, weight decay 0.01, linear decay
after 1,500 iterations of warm-up, an auxiliary head of weight 0.4. The last command judges with several scales, mirror images and a
sliding window.
Time: about a day on 8 GPUs.
Expected, by the paper, of Steps-Swin-T: mIoU 45.5, mAcc 56.8 (Swin-T: 44.5, 55.6). Not run here.
"""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig


def recipe() -> TrainConfig:
    return TrainConfig(
        task="segmentation",
        model="steps_swin_tiny",
        iters=160_000,
        batch_size=16,
        lr=6e-5,
        workers=4,
        drop_path=0.2,
        data=DataConfig(kind="mask_folder", img_size=512, max_size=2048, mask_values=list(range(1, 151)), void_values=[0, 255]),
        augment=AugmentConfig(scale=(0.5, 2.0), flip=0.5, color_jitter=0.4),
        optim=OptimConfig(name="adamw", weight_decay=0.01),
        schedule=ScheduleConfig(kind="poly", power=1.0, warmup_iters=1500, end=0.0),
        eval=EvalConfig(every=16_000, batch_size=8),
    )
