"""A policy's options, from the settings' table to a checked struct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from pyagent.core.errors import ConfigError
from pyagent.core.field_errors import field_error

T = TypeVar("T", bound=msgspec.Struct)


def checked(kind: type[T], policy: str, options: Mapping[str, object]) -> T:
    """Return the options as `kind`; raises `ConfigError` naming the option at fault and those there are."""
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        known, wrong = ", ".join(kind.__struct_fields__) or "none", field_error(error, kind)
        raise ConfigError(f"queue policy {policy!r}: {wrong}; its options are {known}", key="engine.queues") from error
