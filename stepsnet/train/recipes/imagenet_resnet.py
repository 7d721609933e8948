"""Steps-ResNet on ImageNet-1K. The paper gives one setting for all families, AdamW and strong augmentation included.

    torchrun --nproc-per-node 8 -m stepsnet train imagenet_resnet parallel=ddp data.root=IMAGENET
    torchrun --nproc-per-node 8 -m stepsnet train imagenet_resnet parallel=ddp data.root=IMAGENET model=steps_resnet18

Data: IMAGENET/train/<class>/*.JPEG and IMAGENET/val/<class>/*.JPEG. Baseline: model=resnet50.
Time: 300 epochs of 1.28 million pictures, days on 8 GPUs. Not run here.
Expected (the paper's Table 1): top-1 beside ResNet's at equal cost, see `stepsnet paper`. The paper states no stochastic depth for
ResNet, so there is none.
"""

from __future__ import annotations

from stepsnet.train.config import TrainConfig
from stepsnet.train.recipes._imagenet import imagenet


def recipe() -> TrainConfig:
    return imagenet(model="steps_resnet50", drop_path=0.0, clip=0.0)
