"""Numbers of ballots, exact: whole ones, decimals and fractions, and nothing that takes long to compute with."""

from __future__ import annotations

import re
from fractions import Fraction

from pyagent.core.errors import RequestError

Number = int | str
"""As results show it: whole, or a fraction such as `7/2`."""
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?|-?\d{1,12}/\d{1,3}", re.ASCII)
_FORM = "a number of at most 12 digits, with 6 after the point, or a fraction such as 2/3"


def exact(value: int | float | str, what: str) -> Fraction:
    """Return the number; raises `RequestError` naming `what` for what is none, or one with too many digits."""
    text = str(value).strip()
    if isinstance(value, bool) or not _NUMBER.fullmatch(text) or re.search(r"/0+$", text):
        raise RequestError(f"{what} is {text[:40]!r}, expected {_FORM}", param=what.rsplit(maxsplit=1)[-1])
    return Fraction(text)


def shown(value: Fraction | int) -> Number:
    """Return the number as results show it."""
    value = Fraction(value)
    return value.numerator if value.denominator == 1 else str(value)
