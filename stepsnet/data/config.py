"""Location and layout of the data: the `data.*` keys of every recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepsnet.errors import UsageError, nearest

IMAGE_KINDS = ("image_folder", "tiny_imagenet", "cifar10", "fashion_mnist", "digits")
DENSE_KINDS = ("coco", "mask_folder")
TEXT_KINDS = ("text", "tokens", "gutenberg", "python_docs")
EMBEDDED_KINDS = ("digits", "python_docs")
"""Kinds that come with a library or with Python itself and take no `root`."""


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
    """Validation data outside `root` (text files, or a folder of images); empty: found in `root` or split from it."""
    valid_fraction: float = 0.1
    """Share of the data for validation, if the data have no split."""
    img_size: int = 224
    """Images: height and width of the model's input."""
    crop_pct: float = 0.875
    """Images in validation: the centre crop's share of the resized short side (1.0: no border is cut)."""
    max_size: int = 1333
    """Detection: limit of the long side; `img_size` is the short one."""
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
        if both := set(self.mask_values) & set(self.void_values):
            raise UsageError(f"{min(both)} is in both data.mask_values and data.void_values: a class cannot be void.")
        if not 0 < self.crop_pct <= 1:
            raise UsageError(f"data.crop_pct is {self.crop_pct}, but must be above 0 and at most 1.")


def refuse_unused_root(config: DataConfig) -> None:
    """Embedded data need no files, so a `root` would have no effect."""
    if config.kind in EMBEDDED_KINDS and config.root:
        raise UsageError(f"data.root={config.root} has no effect: data.kind={config.kind} needs no files.")
