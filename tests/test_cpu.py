"""What is read from /proc/cpuinfo, and the virtual machines on which AMX crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepsnet.cpu import avoid_amx_crash, bf16_instructions, cpu_facts, has_bf16

AMX = "avx512f avx512_bf16 amx_bf16 amx_tile"


def described(folder: Path, *lines: str) -> Path:
    """A cpuinfo of two processors."""
    path = folder / "cpuinfo"
    path.write_text("processor : 0\n" + "\n".join(lines) + "\n\nprocessor : 1\n\n")
    return path


def test_facts_are_those_of_the_first_processor(tmp_path: Path) -> None:
    assert cpu_facts(described(tmp_path, "flags : fpu avx2")) == {"processor": "0", "flags": "fpu avx2"}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["flags : fpu avx2"], []),
        (["cpuid level : 32", f"flags : {AMX}"], ["avx512_bf16", "amx_bf16"]),
        (["cpuid level : 28", f"flags : {AMX}"], ["avx512_bf16"]),
        (["Features : asimd bf16 i8mm"], ["bf16"]),
    ],
)
def test_bf16_instructions_are_read_from_cpuinfo(lines: list[str], found: list[str], tmp_path: Path) -> None:
    path = described(tmp_path, *lines)
    assert bf16_instructions(path) == found
    assert has_bf16(path) == bool(found)


def test_bf16_is_assumed_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert has_bf16(tmp_path / "no such file")


@pytest.mark.parametrize(
    ("lines", "given", "limit"),
    [
        (["cpuid level : 28", f"flags : {AMX}"], None, "AVX512_CORE_FP16"),
        (["cpuid level : 28", f"flags : {AMX}"], "AVX2", "AVX2"),
        (["cpuid level : 32", f"flags : {AMX}"], None, None),
        (["cpuid level : 28", "flags : avx512f avx512_bf16"], None, None),
        (["Features : asimd"], None, None),
    ],
)
def test_onednn_is_limited_only_where_amx_has_no_tiles(
    lines: list[str], given: str | None, limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if given:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", given)
    avoid_amx_crash(described(tmp_path, *lines))
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == limit


def test_a_bf16_matrix_product_does_not_crash_the_interpreter() -> None:
    code = "import stepsnet, torch; a = torch.ones(128, 128, dtype=torch.bfloat16); print((a @ a)[0, 0].item())"
    clean = {key: value for key, value in os.environ.items() if key != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "128.0\n")
