"""torchvision imports beside any build of torch, and a working torchvision is not changed.

Each case runs in its own process, because a process imports a library once. Broken and working installations are
imitated by small packages called torchvision that do what the real one does while it is imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

IMPORT = "from stepsnet.optional.torchvision import import_torchvision\n"

# What torchvision 0.28 does on import: it loads its library if it can, then registers the shapes of an operator.
TORCHVISION = """
import torch
from torchvision import extension
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets.new_empty(0))
"""


def run(code: str, *search: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter that looks for packages in `search` first, without what set-up added to .venv."""
    path = f"import sys\nsys.path[:0] = {[str(folder) for folder in search]!r}\n"
    path += "sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != 'TorchvisionFinder']\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", path + code], capture_output=True, text=True, check=False
    )


def answer(code: str, *search: Path) -> str:
    """What `code` prints; it must succeed."""
    finished = run(code, *search)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with a package torchvision whose compiled library, an empty file, does not load."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(TORCHVISION)
    (package / "extension.py").write_text("")
    (package / "_C.so").write_bytes(b"")
    return tmp_path


def test_the_installed_torchvision_imports_and_transforms() -> None:
    code = "import_torchvision()\nimport torch\nfrom torchvision.transforms import v2\n"
    code += "print(tuple(v2.RandomResizedCrop(8)(torch.zeros(3, 16, 16)).shape))"
    assert answer(IMPORT + code) == "(3, 8, 8)"


def test_it_can_be_imported_twice() -> None:
    assert answer(IMPORT + "print(import_torchvision() is import_torchvision())") == "True"


def test_timm_imports_after_it() -> None:
    assert answer(IMPORT + "import_torchvision()\nimport timm\nprint(timm.is_model('deit_tiny_patch16_224'))") == "True"


def test_a_plain_import_fails_where_the_library_does_not_load(fake: Path) -> None:
    assert "operator torchvision::nms does not exist" in run("import torchvision", fake).stderr


def test_operators_are_declared_where_the_library_does_not_load(fake: Path) -> None:
    code = "print(import_torchvision().__file__)\nimport torch\nprint(torch.ops.torchvision.nms.default)"
    assert answer(IMPORT + code, fake).splitlines() == [
        str(fake / "torchvision/__init__.py"),
        "torchvision.nms.default",
    ]


def test_the_import_works_after_an_earlier_failed_import(fake: Path) -> None:
    code = "import contextlib\nwith contextlib.suppress(RuntimeError):\n    import torchvision\n"
    code += "stale = sys.modules['torchvision.extension']\nprint(import_torchvision().extension is stale)"
    assert answer(IMPORT + code, fake) == "False"


def test_a_working_torchvision_is_not_changed(fake: Path) -> None:
    """The library that loads here declares its own operators; torch would refuse a second declaration."""
    loads = (
        "import torch\ndef load(path):\n    global library\n    library = torch.library.Library('torchvision', 'DEF')\n"
    )
    loads += "    library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
    loads += "torch.ops.load_library = load\n"
    code = "import_torchvision()\nprint(hasattr(torch.ops.torchvision, 'nms'), hasattr(torch.ops.torchvision, 'qnms'))"
    assert answer(IMPORT + loads + code, fake) == "True False"


def test_a_failing_import_leaves_no_modules_behind(fake: Path) -> None:
    (fake / "torchvision/__init__.py").write_text(
        "from torchvision import extension\nraise RuntimeError('broken otherwise')\n"
    )
    code = "try:\n    import_torchvision()\nexcept RuntimeError as error:\n    print(error)\n"
    code += "print([name for name in sys.modules if name.startswith('torchvision')])"
    assert answer(IMPORT + code, fake).splitlines() == ["broken otherwise", "[]"]


def test_the_error_for_a_missing_torchvision_names_the_extra() -> None:
    hidden = "from importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
    hidden += "PathFinder.find_spec = lambda name, *rest: None if name == 'torchvision' else find(name, *rest)\n"
    message = "torchvision is not installed, and this needs it: pip install '.[vision]'"
    assert message in run(hidden + IMPORT + "import_torchvision()").stderr


def test_a_plain_import_works_once_the_finder_is_installed(fake: Path) -> None:
    code = "from stepsnet.optional import TorchvisionFinder\nTorchvisionFinder.install()\n"
    code += "assert 'torch' not in sys.modules\n"
    assert answer(code + "import torchvision\nprint(torchvision.__name__)", fake) == "torchvision"
