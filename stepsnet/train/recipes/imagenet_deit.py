"""Steps-DeiT on ImageNet-1K, as the paper trains it and DeiT before it.

    torchrun --nproc-per-node 8 -m stepsnet train imagenet_deit parallel=ddp data.root=IMAGENET
    stepsnet train imagenet_deit --dry-run data.root=IMAGENET model=steps_deit_tiny

Data: IMAGENET/train/<class>/*.JPEG and IMAGENET/val/<class>/*.JPEG. Baseline: model=deit_small.
Time: 300 epochs of 1.28 million pictures, days on 8 GPUs. Not run here.
Expected (the paper's Table 1): top-1 beside DeiT's at equal cost, see `stepsnet paper`. DeiT's repeated augmentation is left out,
since the paper does not mention it. Its EMA is left out too: the published accuracies are the plain weights'.
"""

from __future__ import annotations

from stepsnet.train.config import TrainConfig
from stepsnet.train.recipes._imagenet import imagenet


def recipe() -> TrainConfig:
    """DeiT's stochastic depth is 0.1 at every size."""
    return imagenet(model="steps_deit_small", drop_path=0.1, clip=0.0)
