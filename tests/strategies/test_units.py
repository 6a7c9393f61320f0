"""Sizes as people write them."""

from __future__ import annotations

import pytest

from strategies.errors import UnitError
from strategies.units import parse_bytes


@pytest.mark.parametrize("text", ["", "much", "0", "-5GB", "0.1B", "5 PB", "GB", "nan", "9" * 400 + "GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="is no size; give a number above zero and a unit"):
        parse_bytes(text)
