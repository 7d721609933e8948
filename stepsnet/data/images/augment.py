"""Settings of augmentation: the `augment.*` keys of every recipe."""

from __future__ import annotations

from dataclasses import dataclass

from stepsnet.errors import UsageError, nearest

CROPS = ("none", "pad", "resized")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Everything is off by default; 0 always means off. Randomness depends only on (seed, epoch, index)."""

    crop: str = "none"
    """`resized`: random area and aspect ratio; `pad`: pad, then crop at random; `none`: as in validation."""
    crop_min_scale: float = 0.08
    """`resized`: the smallest share of the image's area (the largest is 1; the aspect ratio is 3:4 to 4:3)."""
    crop_padding: int = 4
    """`pad`: pixels added at each side."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Dense data: range of the random resize factor (large-scale jitter), before the crop to `data.img_size`."""
    short_side: tuple[int, int] = (0, 0)
    """Detection: range of the random short side (multi-scale training, steps of 32), instead of `data.img_size`."""
    flip: float = 0.0
    """Probability of a horizontal flip."""
    color_jitter: float = 0.0
    """Strength of random brightness, contrast and saturation."""
    randaugment: int = 0
    """Magnitude from 0 to 10 of RandAugment's two operations."""
    randaugment_std: float = 0.0
    """Standard deviation of that magnitude between images."""
    erasing: float = 0.0
    """Probability that a random rectangle is replaced by noise."""
    mixup: float = 0.0
    """Alpha of Mixup's Beta distribution."""
    cutmix: float = 0.0
    """Alpha of CutMix's Beta distribution."""
    mix_prob: float = 1.0
    """Probability that a batch is mixed, if Mixup or CutMix is on."""
    mix_switch: float = 0.5
    """Probability of CutMix if both are on."""

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise UsageError(f"augment.crop={self.crop!r} is none of {', '.join(CROPS)}{nearest(self.crop, CROPS)}.")
        for key in ("flip", "erasing", "mix_prob", "mix_switch"):
            if not 0 <= getattr(self, key) <= 1:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but a probability must be between 0 and 1.")
        for key in ("crop_padding", "color_jitter", "randaugment_std", "mixup", "cutmix"):
            if getattr(self, key) < 0:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but cannot be negative; 0 turns it off.")
        for key in ("scale", "short_side"):
            if not 0 <= getattr(self, key)[0] <= getattr(self, key)[1]:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but must be a smaller and a larger number.")
        if not 0 < self.crop_min_scale <= 1:
            raise UsageError(f"augment.crop_min_scale is {self.crop_min_scale}, but must be above 0 and at most 1.")
        if not 0 <= self.randaugment <= 10:
            raise UsageError(f"augment.randaugment is {self.randaugment}, but must be between 0 (off) and 10.")


def deit_augment() -> AugmentConfig:
    """DeiT's settings, which Swin and the paper also use.

    Both repositories also pass a colour jitter, but timm ignores it if RandAugment is on, so it is off here.
    """
    return AugmentConfig(
        crop="resized", crop_min_scale=0.08, flip=0.5, randaugment=9, randaugment_std=0.5, erasing=0.25, mixup=0.8,
        cutmix=1.0,
    )
