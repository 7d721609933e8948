"""Pages in Chromium: what their scripts find, and defects of the whole page on a phone and on a desktop."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
SCHEMES = {"dark": 0, "light": 1}
PROBE = Path(__file__).with_name("probe.js")


def show(path: Path, *flags: str) -> dict[str, Any]:
    """What a script of the page wrote as JSON into the element `found`."""
    assert CHROMIUM is not None
    with TemporaryDirectory() as profile:
        command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text is not None, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(unescape(text[1]))
    assert "error" not in seen, seen["error"]
    return seen


def defects(folder: Path, pages: Sequence[str], scheme: str) -> dict[str, list[str]]:
    """What probe.js finds in pages of a folder, by page and width. Only pages with defects are listed."""
    probe = folder / "probe.html"
    script = f"const PAGES = {json.dumps(pages)};\n{PROBE.read_text(encoding='utf-8')}"
    probe.write_text(f"<!doctype html><body><script>{script}</script></body>", encoding="utf-8")
    look = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    found = show(probe, look, "--window-size=1400,20000", "--allow-file-access-from-files",
                 "--virtual-time-budget=100000")  # fmt: skip
    assert len(found) == 2 * len(pages)
    return {page: wrong for page, wrong in found.items() if wrong}
