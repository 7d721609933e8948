"""Steps-Swin on ImageNet-1K, as the paper trains it and Swin before it.

    torchrun --nproc-per-node 8 -m stepsnet train imagenet_swin parallel=ddp data.root=IMAGENET
    torchrun --nproc-per-node 8 -m stepsnet train imagenet_swin parallel=ddp data.root=IMAGENET model=steps_swin_base drop_path=0.5

Data: IMAGENET/train/<class>/*.JPEG and IMAGENET/val/<class>/*.JPEG. Baseline: model=swin_tiny.
Swin's stochastic depth grows with the model: drop_path=0.2 (tiny), 0.3 (small), 0.5 (base). Swin++ trains with the same recipe.
Time: 300 epochs of 1.28 million pictures, days on 8 GPUs. Not run here.
Expected (the paper's Table 1): top-1 beside Swin's at equal cost, see `stepsnet paper`.
"""

from __future__ import annotations

from stepsnet.train.config import TrainConfig
from stepsnet.train.recipes._imagenet import imagenet


def recipe() -> TrainConfig:
    """Swin clips the gradient's norm at 5; DeiT does not."""
    return imagenet(model="steps_swin_tiny", drop_path=0.2, clip=5.0)
