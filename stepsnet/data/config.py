"""Where the data lies and how it is cut: the `data.*` keys of every recipe."""

from __future__ import annotations

from dataclasses import dataclass

from stepsnet.errors import UsageError, nearest

IMAGE_KINDS = ("image_folder", "tiny_imagenet", "cifar10", "fashion_mnist", "digits")
TEXT_KINDS = ("text", "tokens", "gutenberg", "python_docs")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """One data set. `kind` chooses the reader, `root` is its file or folder; the embedded kinds need no root."""

    kind: str
    root: str = ""
    strict: bool = False
    """An unreadable file stops the run instead of being named, counted and skipped."""
    valid: str = ""
    """Validation data when it lies apart from `root` (text files, or a folder of pictures); empty: found in or cut from `root`."""
    valid_fraction: float = 0.1
    """The part cut off for validation where the data brings no split of its own."""
    img_size: int = 224
    """Pictures: height and width that reach the model."""
    crop_pct: float = 0.875
    """Pictures in validation: the centre crop's share of the resized short side (1.0 means no border is cut away)."""
    seq_len: int = 128
    """Text: tokens a window, each with the next one as target."""
    stride: int = 0
    """Text in validation: how many tokens the window slides; 0: seq_len, so that windows do not overlap."""
    valid_windows: int = 0
    """Text in validation: how many windows are taken, evenly spread; 0: all."""
    pattern: str = "**/*"
    """Text: which files of a folder are read."""

    def __post_init__(self) -> None:
        kinds = (*IMAGE_KINDS, *TEXT_KINDS)
        if self.kind not in kinds:
            raise UsageError(f"data.kind is {self.kind!r}, but can be {', '.join(kinds)}{nearest(self.kind, kinds)}.")
        for key in ("img_size", "seq_len"):
            if getattr(self, key) < 1:
                raise UsageError(f"data.{key} is {getattr(self, key)}, but must be at least 1.")
        if not 0 <= self.stride <= self.seq_len:
            raise UsageError(f"data.stride is {self.stride}, but lies between 1 and data.seq_len={self.seq_len}, or is 0 (a whole window).")
        if self.valid_windows < 0:
            raise UsageError(f"data.valid_windows is {self.valid_windows}, but cannot be negative.")
        if not 0 < self.valid_fraction < 1:
            raise UsageError(f"data.valid_fraction is {self.valid_fraction}, but lies between 0 and 1.")
        if not 0 < self.crop_pct <= 1:
            raise UsageError(f"data.crop_pct is {self.crop_pct}, but is above 0 and up to 1.")
