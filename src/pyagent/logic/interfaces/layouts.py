"""A layout written by a person or a program, as JSON or TOML, read as a tree of elements."""

from __future__ import annotations

import tomllib
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.elements import MAX_DEPTH, Element, as_element

MAX_LAYOUT_CHARS = 400_000


def read_layout(text: str, name: str = "the layout") -> Element:
    """Return the tree that a JSON object or a TOML document says; raises `RequestError` naming what is wrong."""
    if len(text) > MAX_LAYOUT_CHARS:
        raise RequestError(f"{name} has {len(text):,} characters; the most is {MAX_LAYOUT_CHARS:,}", param="layout")
    try:
        value = _json(text) if text.lstrip().startswith("{") else cast("object", tomllib.loads(text))
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeEncodeError) as error:
        raise RequestError(f"{name} is neither JSON nor TOML: {error}", param="layout") from error
    except RecursionError as error:
        raise RequestError(f"{name} is nested more than {MAX_DEPTH} deep", param="layout") from error
    return as_element(value)


def _json(text: str) -> object:
    return cast("object", msgspec.json.decode(text.encode()))
