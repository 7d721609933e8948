"""What the CPU can compute, as /proc/cpuinfo describes it."""

from __future__ import annotations

import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
TILE_LEAF = 0x1D
"""The CPUID leaf that describes the tile registers of AMX."""
NO_BF16 = "This CPU has no bf16 instructions (avx512_bf16, amx_bf16): computing in fp32."


def cpu_facts(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """/proc/cpuinfo of the first processor; empty on other systems."""
    facts: dict[str, str] = {}
    if cpuinfo.is_file():
        with cpuinfo.open(encoding="utf-8") as lines:
            for line in lines:
                key, colon, value = line.partition(":")
                if not colon:  # an empty line ends a processor
                    break
                facts.setdefault(key.strip(), value.strip())
    return facts


def bf16_instructions(cpuinfo: Path = CPUINFO) -> list[str]:
    """The bf16 instruction sets that this CPU has; without AMX where it crashes."""
    found = [flag for flag in ("avx512_bf16", "amx_bf16", "bf16") if flag in _flags(cpu_facts(cpuinfo))]
    return [flag for flag in found if not (flag == "amx_bf16" and amx_crashes(cpuinfo))]


def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this CPU has bf16 instructions; true where the system does not tell."""
    return not cpuinfo.is_file() or bool(bf16_instructions(cpuinfo))


def amx_crashes(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU announces AMX but hides the description of its tiles, as some virtual machines do.

    oneDNN then loads an empty tile configuration, and the first bf16 matrix product ends the process (SIGILL).
    """
    facts = cpu_facts(cpuinfo)
    return "amx_tile" in _flags(facts) and int(facts.get("cpuid level", TILE_LEAF)) < TILE_LEAF


def avoid_amx_crash(cpuinfo: Path = CPUINFO) -> None:
    """Limit oneDNN, in PyTorch and in OpenVINO, to AVX512 where AMX crashes; a limit of the user stays.

    oneDNN reads the variable when it creates its first kernel, so this must run before that.
    """
    if amx_crashes(cpuinfo):
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _flags(facts: dict[str, str]) -> list[str]:
    return (facts.get("flags") or facts.get("Features", "")).split()  # x86, ARM
