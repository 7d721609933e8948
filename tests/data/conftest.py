from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeImage = Callable[[Path], Path]


@pytest.fixture
def make_image() -> MakeImage:
    """Writes a small image whose noise depends on its name."""

    def make(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(list(path.name.encode())).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        return path

    return make
