"""Mixup and CutMix: pictures of a batch mixed with their neighbours, and their targets in the same proportion."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepsnet.data.images.augment import AugmentConfig
from stepsnet.data.rng import mix, torch_seeded
from stepsnet.optional.torchvision import import_torchvision

_MIXING = 0x313  # keeps these draws apart from those of single samples


@dataclass(frozen=True)
class BatchMixer:
    """Mixes a batch with the randomness of (seed, step, first id). Targets become soft, (B, K), whichever of the two is on."""

    augment: AugmentConfig
    num_classes: int
    smoothing: float
    seed: int

    def __call__(self, images: Tensor, target: Tensor, ids: Tensor, step: int) -> tuple[Tensor, Tensor]:
        augment = self.augment
        if not (augment.mixup or augment.cutmix) or len(images) == 0:
            return images, target
        with torch_seeded(mix(self.seed, _MIXING, step, int(ids[0]))):
            if float(torch.rand(())) >= augment.mix_prob:
                return images, target
            both = bool(augment.mixup and augment.cutmix)
            cut = float(torch.rand(())) < augment.mix_switch if both else bool(augment.cutmix)
            # torchvision's CutMix takes lambda from the box as it is after being cut off at the picture's border.
            images, soft = _mixer("CutMix" if cut else "MixUp", augment.cutmix if cut else augment.mixup, self.num_classes)(images, target)
        return images, soft * (1 - self.smoothing) + self.smoothing / self.num_classes


@functools.lru_cache(maxsize=8)
def _mixer(name: str, alpha: float, num_classes: int) -> Any:
    import_torchvision()
    from torchvision.transforms import v2

    return getattr(v2, name)(alpha=alpha, num_classes=num_classes)
