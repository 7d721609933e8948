"""What the data of a run depend on: the `data.*` and `augment.*` keys, and random numbers that depend only on a key.

Each sample draws its own random numbers from (seed, epoch, index), so a resumed run draws the same as an uninterrupted
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stepsnet.errors import UsageError, nearest

IMAGE_KINDS = ("image_folder", "tiny_imagenet", "cifar10", "fashion_mnist", "digits")
DENSE_KINDS = ("coco", "mask_folder")
TEXT_KINDS = ("text", "tokens", "gutenberg", "python_docs")
EMBEDDED_KINDS = ("digits", "python_docs")
"""Kinds that come with a library or with Python itself and take no `root`."""
_MASK = (1 << 64) - 1
TRAINED_ON = "data.valid=%s is part of the training data in %s, so the validation does not show generalisation."
CROPS = ("none", "pad", "resized")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """One data set. `kind` chooses the reader, `root` is its file or folder; embedded kinds have no root."""

    kind: str
    """The reader of the data; set by the recipe."""
    root: str = ""
    """The file or folder of the data; embedded data have none."""
    strict: bool = False
    """An unreadable file stops the run; otherwise it is skipped, logged and counted."""
    valid: str = ""
    """Validation data: text files, or a folder of images; for prepared text and Gutenberg: the part, `valid` or `test`.
    If empty, images and prepared text have it in `root`, or it is split from the training data."""
    valid_fraction: float = 0.1
    """Share of the data for validation, if the data have no split."""
    img_size: int = 224
    """Images: height and width of the model's input."""
    crop_pct: float = 0.875
    """Images in validation: the centre crop's share of the resized short side (1.0: no border is cut)."""
    max_size: int = 1333
    """Dense data: limit of the long side; `img_size` is the short one."""
    annotations: str = ""
    """Detection: the training annotations, a COCO file below `root`; empty: the usual names are tried."""
    valid_annotations: str = ""
    """Detection: the same for validation."""
    images: str = ""
    """Dense data: the folder of images below `root`; empty: the usual names are tried."""
    masks: str = ""
    """Segmentation: the folder of masks below `root`; empty: the usual names are tried."""
    mask_values: list[int] = field(default_factory=list)
    """Segmentation: the value of each class in the masks, in order; empty: 0, 1, … as many as `class_names`."""
    void_values: list[int] = field(default_factory=lambda: [255])
    """Segmentation: mask values that do not count. Values that are neither a class nor void are refused."""
    class_names: list[str] = field(default_factory=list)
    """Segmentation: names of the classes; empty: lines of `classes.txt` in `root`, or `mask_values`."""
    seq_len: int = 128
    """Text: tokens per window, each with the next one as target."""
    stride: int = 0
    """Text in validation: distance between windows in tokens; 0: seq_len, so that windows do not overlap."""
    valid_windows: int = 0
    """Text in validation: number of windows, evenly spread; 0: all."""
    pattern: str = "**/*"
    """Text: which files of a folder are read."""

    def __post_init__(self) -> None:
        kinds = (*IMAGE_KINDS, *DENSE_KINDS, *TEXT_KINDS)
        if self.kind not in kinds:
            raise UsageError(f"data.kind is {self.kind!r}, but can be {', '.join(kinds)}{nearest(self.kind, kinds)}.")
        for key in ("img_size", "max_size", "seq_len"):
            if getattr(self, key) < 1:
                raise UsageError(f"data.{key} is {getattr(self, key)}, but must be at least 1.")
        if not 0 <= self.stride <= self.seq_len:
            raise UsageError(f"data.stride is {self.stride}, but must be between 0 and data.seq_len={self.seq_len}.")
        if self.valid_windows < 0:
            raise UsageError(f"data.valid_windows is {self.valid_windows}, but cannot be negative.")
        if not 0 < self.valid_fraction < 1:
            raise UsageError(f"data.valid_fraction is {self.valid_fraction}, but must be above 0 and below 1.")
        if not 0 < self.crop_pct <= 1:
            raise UsageError(f"data.crop_pct is {self.crop_pct}, but must be above 0 and at most 1.")


def refuse_unused_root(config: DataConfig) -> None:
    """Embedded data need no files, so a `root` would have no effect."""
    if config.kind in EMBEDDED_KINDS and config.root:
        raise UsageError(f"data.root={config.root} has no effect: data.kind={config.kind} needs no files.")


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
            known = ", ".join(CROPS)
            raise UsageError(f"augment.crop is {self.crop!r}, but can be {known}{nearest(self.crop, CROPS)}.")
        for key in ("flip", "erasing", "mix_prob", "mix_switch"):
            if not 0 <= getattr(self, key) <= 1:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but a probability must be between 0 and 1.")
        for key in ("crop_padding", "color_jitter", "randaugment_std", "mixup", "cutmix"):
            if getattr(self, key) < 0:
                raise UsageError(f"augment.{key} is {getattr(self, key)}, but cannot be negative; 0 turns it off.")
        for key in ("scale", "short_side"):
            low, high = getattr(self, key)
            if not 0 < low <= high and (key, low, high) != ("short_side", 0, 0):
                raise UsageError(f"augment.{key} is {low},{high}, but must be a smaller and a larger number above 0.")
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


def mix(*numbers: int) -> int:
    """A 63-bit hash of a few integers: SplitMix64's finaliser after each one, about a microsecond in all."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block, and restore its state afterwards.

    `torch.manual_seed` would also reseed the accelerators, which the training loop's dropout uses.
    """
    import torch  # here, so that processes that only prepare text do not import it

    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
