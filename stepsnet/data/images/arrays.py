"""Small pictures that fit in memory: CIFAR-10, Fashion-MNIST, and scikit-learn's digits, which need no download."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepsnet.data.config import DataConfig
from stepsnet.data.images.datasets import ArraySource, Pictures
from stepsnet.errors import UsageError
from stepsnet.optional import require

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS_TRAIN = 1437  # of 1797, the first four fifths: the pictures are in the order of their writers, so validation has new hands


def load_cifar10(config: DataConfig) -> Pictures:
    """CIFAR-10 from one `.npz` (train_images, train_labels, test_images, test_labels), or from the folder of python batches."""
    root = _existing(config, "an .npz file or the folder cifar-10-batches-py")
    train, valid = _cifar10_batches(root) if root.is_dir() else _cifar10_npz(root)
    return Pictures("cifar10", CIFAR10_CLASSES, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), train, valid)


def load_fashion_mnist(config: DataConfig) -> Pictures:
    """Fashion-MNIST from its four idx files, `.gz` or not, anywhere below the folder. For 32×32 a black border is added."""
    root = _existing(config, "the folder of the four idx files")
    splits = []
    for prefix in ("train", "t10k"):
        images = read_idx(_idx_file(root, f"{prefix}-images-idx3-ubyte"))
        labels = read_idx(_idx_file(root, f"{prefix}-labels-idx1-ubyte"))
        if images.ndim != 3:
            raise UsageError(f"{root}: {prefix}-images-idx3-ubyte has {images.ndim} dimensions, but pictures need 3.")
        if config.img_size == 32 and images.shape[1:] == (28, 28):
            images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        splits.append(_source(images[..., None], labels, f"{root}, {prefix}"))
    return Pictures("fashion_mnist", FASHION_CLASSES, (0.2860,), (0.3530,), *splits)


def load_digits(config: DataConfig) -> Pictures:
    """scikit-learn's 1797 digits of 8×8, enlarged to what the model needs."""
    data = require("sklearn.datasets", extra="vision").load_digits()
    images = torch.from_numpy(data.images[:, None] * (255 / 16))
    if config.img_size != images.shape[-1]:
        images = torch.nn.functional.interpolate(images, size=(config.img_size, config.img_size), mode="bilinear", align_corners=False)
    pixels = images.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    splits = [_source(pixels[part], data.target[part], "digits") for part in (slice(DIGITS_TRAIN), slice(DIGITS_TRAIN, None))]
    return Pictures("digits", tuple(map(str, range(10))), (0.3053,), (0.3760,), *splits)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: two zeros, type 8, the number of dimensions, each size as four bytes, then the values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as reason:
        raise UsageError(f"cannot read {path}: {reason}.") from reason
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UsageError(f"{path} is not an idx file of unsigned bytes.")
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if len(data) != start + math.prod(shape):
        raise UsageError(f"{path} has {len(data)} bytes, but its header announces {start + math.prod(shape)}.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _existing(config: DataConfig, what: str) -> Path:
    if not config.root:
        raise UsageError(f"data.root is missing: give {what} of {config.kind}.")
    root = Path(config.root).expanduser()
    if not root.exists():
        raise UsageError(f"data.root={config.root} does not exist; it should be {what}.")
    return root


def _source(images: NDArray[Any], labels: NDArray[Any], where: str) -> ArraySource:
    """Check that pictures and labels belong together."""
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UsageError(f"{where}: pictures are {images.dtype} with {images.ndim} dimensions, but uint8 with 4 was expected.")
    if labels.shape != images.shape[:1]:
        raise UsageError(f"{where}: {len(images)} pictures, but labels of shape {labels.shape}.")
    return ArraySource(images, labels.astype(np.int64))


def _cifar10_npz(path: Path) -> tuple[ArraySource, ArraySource]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("train_images", "train_labels", "test_images", "test_labels")}
    except KeyError as missing:
        raise UsageError(f"{path}: {missing.args[0]}; it needs train_images, train_labels, test_images and test_labels.") from missing
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as reason:
        raise UsageError(f"{path} cannot be read as an .npz file: {reason}.") from reason
    return (
        _source(arrays["train_images"], arrays["train_labels"], f"{path}, train"),
        _source(arrays["test_images"], arrays["test_labels"], f"{path}, test"),
    )


def _cifar10_batches(root: Path) -> tuple[ArraySource, ArraySource]:
    folder = root / "cifar-10-batches-py" if (root / "cifar-10-batches-py").is_dir() else root
    batches = [_read_batch(folder / f"data_batch_{number}") for number in range(1, 6)]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _source(images, labels, f"{folder}, train"), _source(*_read_batch(folder / "test_batch"), f"{folder}, test")


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One python batch: pictures as rows of 3072 bytes, colour by colour."""
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        rows, labels = np.asarray(content[b"data"], dtype=np.uint8), np.asarray(content[b"labels"], dtype=np.int64)
        return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), labels
    except (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, ImportError, IndexError, pickle.UnpicklingError) as reason:
        raise UsageError(f"{path} cannot be read as a CIFAR-10 python batch: {reason!r}.") from reason


class _ArraysOnly(pickle.Unpickler):
    """The python batches are pickles, and a pickle can call anything. This one can only build numpy arrays and plain containers."""

    allowed = frozenset({("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("numeric", "_frombuffer")})

    def find_class(self, module: str, name: str) -> Any:
        # numpy moved its insides from numpy.core to numpy._core; both lead to the same functions.
        inside = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (inside, name) not in self.allowed or (inside != "numpy") != module.startswith("numpy."):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return super().find_class("numpy" if inside == "numpy" else f"numpy._core.{inside}", name)


def _idx_file(root: Path, name: str) -> Path:
    found = sorted(path for path in root.rglob(f"{name}*") if path.name in (name, f"{name}.gz"))
    if not found:
        raise UsageError(f"there is no {name} or {name}.gz below {root}.")
    return found[0]
