"""How one training picture is changed before the model sees it, with randomness from (seed, epoch, index) alone."""

from __future__ import annotations

from dataclasses import dataclass

from stepsnet.errors import UsageError, nearest

CROPS = ("none", "pad", "resized")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """The `augment.*` keys of every recipe. Everything is off by default; zero always means off."""

    crop: str = "none"
    """`resized`: random area and shape, resized; `pad`: pad and cut at a random place; `none`: as in validation."""
    crop_min_scale: float = 0.08
    """`resized`: the smallest share of the picture's area (the largest is 1; the shape is 3:4 to 4:3)."""
    crop_padding: int = 4
    """`pad`: pixels added at each side."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Dense data: the picture is resized by a factor between these (large-scale jitter), then cut or padded to `data.img_size`."""
    short_side: tuple[int, int] = (0, 0)
    """Detection: multi-scale training, the short side between these in steps of 32, instead of `data.img_size`."""
    flip: float = 0.0
    """Probability of a horizontal flip."""
    color_jitter: float = 0.0
    """Strength of random brightness, contrast and saturation."""
    randaugment: int = 0
    """Magnitude from 0 to 10 of RandAugment's two operations."""
    randaugment_std: float = 0.0
    """Standard deviation of that magnitude from picture to picture."""
    erasing: float = 0.0
    """Probability that a random rectangle is replaced by noise."""
    mixup: float = 0.0
    """Alpha of Mixup's Beta distribution."""
    cutmix: float = 0.0
    """Alpha of CutMix's Beta distribution."""
    mix_prob: float = 1.0
    """Probability that a batch is mixed at all (given Mixup or CutMix)."""
    mix_switch: float = 0.5
    """Probability of CutMix where both are on."""

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise UsageError(f"augment.crop is {self.crop!r}, but can be {', '.join(CROPS)}{nearest(self.crop, CROPS)}.")
        for key in ("flip", "erasing", "mix_prob", "mix_switch"):
            if not 0 <= getattr(self, key) <= 1:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but a probability lies between 0 and 1.")
        for key in ("crop_padding", "color_jitter", "randaugment_std", "mixup", "cutmix"):
            if getattr(self, key) < 0:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but cannot be negative; 0 turns it off.")
        for key in ("scale", "short_side"):
            if not 0 <= getattr(self, key)[0] <= getattr(self, key)[1]:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but is a smaller and a larger number.")
        if not 0 < self.crop_min_scale <= 1:
            raise UsageError(f"augment.crop_min_scale is {self.crop_min_scale}, but is a share of the picture, above 0 and up to 1.")
        if not 0 <= self.randaugment <= 10:
            raise UsageError(f"augment.randaugment is {self.randaugment}, but the magnitude goes from 0 (off) to 10.")


def deit_augment() -> AugmentConfig:
    """DeiT's settings, which Swin and the paper use too.

    Both repositories also pass a colour jitter (0.3, 0.4), but timm leaves it out whenever RandAugment is on, so it is off here.
    """
    return AugmentConfig(
        crop="resized", crop_min_scale=0.08, flip=0.5, randaugment=9, randaugment_std=0.5, erasing=0.25, mixup=0.8, cutmix=1.0
    )
