"""Bytes and seconds in code; GiB, minutes and hours on paper."""

from __future__ import annotations

import re

from strategies.errors import UnitError

KIB = 2**10
MIB = 2**20
GIB = 2**30
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": KIB, "MIB": MIB, "GIB": GIB}
_SIZE = re.compile(rf"(\d{{1,18}}(?:\.\d+)?)\s*({'|'.join(_UNITS)})?", re.IGNORECASE)


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


def parse_bytes(text: str) -> int:
    """Return the bytes that ``text`` names: a number and a decimal or binary unit, as people write sizes of files.

    >>> parse_bytes("5GB"), parse_bytes("1.5 GiB"), parse_bytes("300")
    (5000000000, 1610612736, 300)

    Raises:
        UnitError: it is no size above zero.
    """
    match = _SIZE.fullmatch(text.strip())
    num_bytes = int(float(match[1]) * _UNITS[(match[2] or "B").upper()]) if match else 0
    if num_bytes < 1:
        raise UnitError(f"{text!r} is no size; give a number above zero and a unit, as 5GB, 500MB or 2GiB")
    return num_bytes


def format_seconds(seconds: float, *, digits: int = 4) -> str:
    """Return a time as text that is read without counting zeros; below two minutes with so many digits.

    >>> [format_seconds(each) for each in (0.95812, 3.9540, 1_070.4, 13_990.0)]
    ['0.9581 s', '3.954 s', '17 min 50 s', '3 h 53 min']
    >>> format_seconds(2.5e-5), format_seconds(3.954, digits=3)
    ('25 us', '3.95 s')
    """
    if 0 < seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 120:
        return f"{seconds:.{digits}g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def ceil_div(numerator: int, denominator: int) -> int:
    """Return ``numerator / denominator`` rounded up."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``value``."""
    return ceil_div(value, multiple) * multiple


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is not below ``value``."""
    return 1 << (value - 1).bit_length()
