"""Texts inside a text: base64, hexadecimal, rot13, letters apart or backwards, entities and percent signs. Pure."""

from __future__ import annotations

import codecs
import html
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_HEX_END = r"(?:[ :,]{1,2}(?:0x)?|\\x)"
_HEX = re.compile(rf"(?<![0-9a-fA-F])[0-9a-fA-F]{{2}}{_HEX_END}(?:[0-9a-fA-F]{{2}}{_HEX_END}){{8,}}[0-9a-fA-F]{{2}}")
_HEX_SIGNS = re.compile(r"\\x|0x|[ :,]")
_HEX_BETWEEN = (" ", ":", ",", "x")
_APART = re.compile(r"(?<!\w)(?:\w[ .\-*_|/]{1,3}){7,}\w(?!\w)")
_SINGLE = re.compile(r"(?:[ .\-*_|/]\w){6}")
_APART_SIGN = re.compile(r"(?<=\w)[ .\-*_|/](?=\w)")
_ENTITIES = re.compile(r"(?:&#x?[0-9a-fA-F]{1,6};[ ]?){6,}")
_PERCENTS = re.compile(r"(?:%[0-9a-fA-F]{2}[\w.-]{0,40}){4,}")
_ROT13 = (
    "vtaber",
    "vafgehpgvba",
    "cerivbhf",
    "cebzcg",
    "flfgrz",
    "cnffjbeq",
    "qvfertneq",
    "birreevqr",
    "riny",
    "frperg",
)
_BACKWARDS = ("erongi", "noitcurtsni", "suoiverp", "tpmorp", "metsys", "drowssap", "drageR", "laever")
_MIN_LETTERS = 0.7


class Inside(msgspec.Struct, frozen=True):
    """A text found in an encoding, and where that stands."""

    how: str
    start: int
    end: int
    text: str


def texts_inside(text: str) -> Iterator[Inside]:
    """Find what can be decoded and is text. What is found is not looked into a second time here."""
    yield from _runs(text)
    if _SINGLE.search(text):
        for found in _APART.finditer(text):
            yield Inside("letters apart", *found.span(), _APART_SIGN.sub("", found[0]))
    if "&#" in text:
        for found in _ENTITIES.finditer(text):
            yield Inside("entities", *found.span(), html.unescape(found[0].replace("; ", ";")))
    if "%" in text:
        for found in _PERCENTS.finditer(text):
            yield Inside("percent signs", *found.span(), unquote(found[0]))
    small = text.lower()
    if sum(word in small for word in _ROT13) > 1:
        yield Inside("rot13", 0, len(text), codecs.encode(text, "rot13"))
    if sum(word in small for word in _BACKWARDS) > 1:
        yield Inside("backwards", 0, len(text), text[::-1])


def _runs(text: str) -> Iterator[Inside]:
    """Find base64 and hexadecimal."""
    for found in _BASE64.finditer(text):
        if decoded := _readable(_base64(found[0])):
            yield Inside("base64", *found.span(), decoded)
        elif decoded := _readable(_hex(found[0])):
            yield Inside("hexadecimal", *found.span(), decoded)
    if any(f"{sign}6" in text and f"{sign}7" in text for sign in _HEX_BETWEEN):  # the letters of ASCII
        for found in _HEX.finditer(text):
            if decoded := _readable(_hex(found[0])):
                yield Inside("hexadecimal", *found.span(), decoded)


def _base64(text: str) -> bytes:
    text = text.rstrip("=").replace("-", "+").replace("_", "/")
    text = text[: len(text) - 1] if len(text) % 4 == 1 else text
    try:
        return b64decode(text + "=" * (-len(text) % 4))
    except (Error, ValueError):
        return b""


def _hex(text: str) -> bytes:
    digits = _HEX_SIGNS.sub("", text)
    try:
        return bytes.fromhex(digits[: len(digits) // 2 * 2])
    except ValueError:
        return b""


def _readable(content: bytes) -> str:
    """Return bytes as text if they are words: letters and spaces for the most part; else nothing."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return ""
    num_letters = sum(map(str.isalpha, text)) + text.count(" ")
    return text if num_letters >= _MIN_LETTERS * len(text) else ""
