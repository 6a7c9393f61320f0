"""Bytes in code, GiB on paper."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30


def gib(num_bytes: float) -> float:
    """Return ``num_bytes`` in GiB (2**30), for printing only."""
    return num_bytes / GIB


def format_bytes(num_bytes: float) -> str:
    """Return ``num_bytes`` as text with the largest binary unit that keeps it above one.

    >>> format_bytes(3 * 2**29)
    '1.50 GiB'
    >>> format_bytes(-2048)
    '-2.00 KiB'
    """
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def ceil_div(numerator: int, denominator: int) -> int:
    """Return ``numerator / denominator`` rounded up."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``value``."""
    return ceil_div(value, multiple) * multiple


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is not below ``value``."""
    return 1 << (value - 1).bit_length()
