"""Rates as they stand in settings: one, or a table of names. Read once, every mistake named."""

from __future__ import annotations

from pyagent.core.rates import read_bucket_rate
from pyagent.core.setting_kinds import Kind, read_table

_MAX_NAMES = 1_000
_LONGEST_NAME = 200


def _read_one(value: object) -> str:
    return read_bucket_rate(value).text


def _read_table(value: object) -> dict[str, str]:
    table = read_table(value)
    if len(table) > _MAX_NAMES:
        raise ValueError(f"expected at most {_MAX_NAMES} names, got {len(table)}")
    rates: dict[str, str] = {}
    for name, entry in table.items():
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"expected names of 1 to {_LONGEST_NAME} characters on one line, got {name[:80]!r}")
        try:
            rates[name] = _read_one(entry)
        except ValueError as error:
            raise ValueError(f"{error}, as the rate of {name!r}") from error
    return rates


RATE = Kind("rate", _read_one)
RATES = Kind("table of rates", _read_table, "table")
