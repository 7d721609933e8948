"""Numbers as text with a unit that suits them, so that a small number is not printed as 0."""

from __future__ import annotations


def si(count: float) -> str:
    """4.61 G, 5.72 M, 57.96 k, 640: of parameters and MACs."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.2f} {letter}"
    return f"{count:g}"


def megabytes(count: float) -> str:
    """12.3 MB, of a million bytes each; 4.1 kB."""
    return f"{count / 1e6:,.1f} MB" if abs(count) >= 1e6 else f"{count / 1e3:.1f} kB"


def milliseconds(seconds: float) -> str:
    """152 ms, 15.2 ms, 1.52 ms."""
    digits = 0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2
    return f"{1000 * seconds:.{digits}f} ms" if seconds >= 1e-5 else f"{1000 * seconds:.2g} ms"


def significant(value: float) -> str:
    """1,234 or 152 or 15.2 or 0.0152."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """45%, 4.5%, 0.045%."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def counted(count: int, what: str) -> str:
    """1 step, 2 steps."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
