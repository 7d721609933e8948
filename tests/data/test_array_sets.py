from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepsnet.data.config import DataConfig
from stepsnet.data.images.datasets import ArraySource
from stepsnet.data.images.readers import load_cifar10, load_digits, load_fashion_mnist, read_idx
from stepsnet.errors import UsageError

RNG = np.random.default_rng(0)
LABELS = np.arange(20, dtype=np.uint8) % 10


def images_of(source: object) -> np.ndarray[Any, np.dtype[np.uint8]]:
    assert isinstance(source, ArraySource)
    return source.images


def cifar(root: Path) -> DataConfig:
    return DataConfig(kind="cifar10", root=str(root), img_size=32)


def write_npz(path: Path, **changes: Any) -> dict[str, Any]:
    pixels = RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    arrays = {
        "train_images": pixels,
        "train_labels": LABELS,
        "test_images": pixels[:10],
        "test_labels": LABELS[:10],
    } | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return arrays


def test_cifar10_from_npz(tmp_path: Path) -> None:
    arrays = write_npz(tmp_path / "c.npz")
    loaded = load_cifar10(cifar(tmp_path / "c.npz"))
    assert np.array_equal(images_of(loaded.train), arrays["train_images"])
    assert loaded.valid.labels.tolist() == list(range(10))
    assert (loaded.channels, len(loaded.classes)) == (3, 10)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test_labels": None}, "test_labels"),
        ({"train_labels": LABELS + 1}, "image 9 has label 10, but labels must be 0 to 9"),
        ({"train_labels": LABELS[:5]}, "20 images, but labels of shape"),
        ({"train_labels": LABELS % 9}, r"1 of 10 classes have no images \(truck\)"),
        ({"train_images": np.zeros((20, 32, 32))}, "dimensions, but must be uint8"),
        ({"train_images": np.array([{}] * 20)}, "cannot be read"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write_npz(tmp_path / "c.npz", **changes)
    with pytest.raises(UsageError, match=sentence):
        load_cifar10(cifar(tmp_path / "c.npz"))


def test_the_error_names_a_file_that_is_not_an_npz(tmp_path: Path) -> None:
    (tmp_path / "c.npz").write_bytes(b"something else")
    with pytest.raises(UsageError, match=r"c\.npz cannot be read"):
        load_cifar10(cifar(tmp_path / "c.npz"))


@pytest.mark.parametrize("root", ["", "nowhere.npz"])
def test_the_error_for_a_missing_root_says_what_is_expected(root: str) -> None:
    with pytest.raises(UsageError, match="cifar-10-batches-py"):
        load_cifar10(DataConfig(kind="cifar10", root=root))


def write_batches(folder: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    folder.mkdir()
    rows = RNG.integers(0, 256, (10, 3072), dtype=np.uint8)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = {
            b"data": rows,
            b"labels": list(range(10)),
            b"batch_label": name.encode(),
            b"filenames": [b"a.png"] * 10,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=3))
    return rows


def test_cifar10_from_python_batches(tmp_path: Path) -> None:
    rows = write_batches(tmp_path / "cifar-10-batches-py")
    loaded = load_cifar10(cifar(tmp_path))
    assert len(loaded.train.labels) == 50
    red_of_second_row = rows[3, 32:64]
    assert np.array_equal(images_of(loaded.train)[3, 1, :, 0], red_of_second_row)


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_batch_that_would_run_code_is_refused(tmp_path: Path) -> None:
    write_batches(tmp_path / "b")
    (tmp_path / "b/data_batch_1").write_bytes(
        pickle.dumps({b"data": Payload(tmp_path / "owned"), b"labels": []}, protocol=3)
    )
    with pytest.raises(UsageError, match="mkdir, which is not allowed in a batch"):
        load_cifar10(cifar(tmp_path / "b"))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy.load",
        "numpy.core.multiarray.fromfile",
        "multiarray._reconstruct",
        "builtins.eval",
        "numpy.testing.measure",
    ],
)
def test_a_batch_can_only_build_arrays(tmp_path: Path, name: str) -> None:
    write_batches(tmp_path / "b")
    module, _, function = name.rpartition(".")
    (tmp_path / "b/data_batch_1").write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(UsageError, match="which is not allowed in a batch"):
        load_cifar10(cifar(tmp_path / "b"))


def test_the_error_names_a_missing_batch(tmp_path: Path) -> None:
    write_batches(tmp_path / "b")
    (tmp_path / "b/data_batch_4").unlink()
    with pytest.raises(UsageError, match="There is no data_batch_4 in "):
        load_cifar10(cifar(tmp_path / "b"))


def idx(values: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape) + values.tobytes()


def write_fashion(folder: Path, *, packed: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
    folder.mkdir(parents=True)
    pixels = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    for prefix in ("train", "t10k"):
        for kind, values in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", LABELS)):
            (folder / (kind + ".gz" * packed)).write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return pixels


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_found_below_its_folder_and_padded(tmp_path: Path, packed: bool) -> None:
    pixels = write_fashion(tmp_path / "usr/share", packed=packed)
    loaded = load_fashion_mnist(DataConfig(kind="fashion_mnist", root=str(tmp_path), img_size=32))
    images = images_of(loaded.train)
    assert images.shape == (20, 32, 32, 1)
    assert np.array_equal(images[:, 2:-2, 2:-2, 0], pixels)
    assert not images[:, :2].any()
    assert loaded.channels == 1


def test_fashion_mnist_keeps_its_size_at_28(tmp_path: Path) -> None:
    write_fashion(tmp_path / "f", packed=True)
    assert images_of(
        load_fashion_mnist(DataConfig(kind="fashion_mnist", root=str(tmp_path), img_size=28)).train
    ).shape == (20, 28, 28, 1)


def test_the_error_names_a_missing_idx_file(tmp_path: Path) -> None:
    write_fashion(tmp_path / "f", packed=True)
    (tmp_path / "f/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UsageError, match="t10k-labels-idx1-ubyte"):
        load_fashion_mnist(DataConfig(kind="fashion_mnist", root=str(tmp_path)))


@pytest.mark.parametrize("content", [idx(LABELS)[:-1], b"", b"\0\0\x0d\1" + idx(LABELS)[4:]])
def test_the_error_names_a_damaged_idx_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(UsageError, match="labels"):
        read_idx(tmp_path / "labels")


def test_the_error_names_a_damaged_gzip(tmp_path: Path) -> None:
    (tmp_path / "labels.gz").write_bytes(gzip.compress(idx(LABELS))[:-9])
    with pytest.raises(UsageError, match=r"cannot read .*labels\.gz"):
        read_idx(tmp_path / "labels.gz")


@pytest.mark.parametrize("size", [8, 32])
def test_digits_have_a_fixed_split_and_are_resized(size: int) -> None:
    loaded = load_digits(DataConfig(kind="digits", img_size=size))
    assert images_of(loaded.train).shape == (1437, size, size, 1)
    assert images_of(loaded.valid).shape == (360, size, size, 1)
    assert loaded.train.labels[:10].tolist() == list(range(10))
    assert images_of(loaded.train).max() == 255
