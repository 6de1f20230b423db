"""The frameworks: how each is written and read, and which fields of an element its code cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, cast, get_args

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.elements import Element
from pyagent.logic.interfaces.flutter_reading import read_flutter
from pyagent.logic.interfaces.flutter_writing import write_flutter
from pyagent.logic.interfaces.markup import read_jsx, read_markup, read_svelte
from pyagent.logic.interfaces.mending import clean
from pyagent.logic.interfaces.qt_reading import read_qt
from pyagent.logic.interfaces.qt_writing import write_qt
from pyagent.logic.interfaces.swiftui_reading import read_swiftui
from pyagent.logic.interfaces.swiftui_writing import write_swiftui
from pyagent.logic.interfaces.tag_reading import page_of
from pyagent.logic.interfaces.textual_reading import read_textual
from pyagent.logic.interfaces.textual_writing import write_textual
from pyagent.logic.interfaces.tkinter_reading import read_tkinter
from pyagent.logic.interfaces.tkinter_writing import write_tkinter
from pyagent.logic.interfaces.web_writing import write_html, write_react, write_svelte, write_vue

FrameworkName = Literal["html", "react", "vue", "svelte", "tkinter", "pyside6", "textual", "flutter", "swiftui"]
NAMES: tuple[FrameworkName, ...] = get_args(FrameworkName)
_SET_TITLE = re.compile(r"document\.title\s*=\s*(\"(?:[^\"\\\n]|\\.)*\")")


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """A framework: `loses` names the fields of an element that its code does not say."""

    write: Callable[[Element], str]
    read: Callable[[str], Element]
    suffix: str
    loses: frozenset[str] = frozenset()


def _read_vue(text: str) -> Element:
    set_by_script = _SET_TITLE.search(text)
    title = clean(cast("str", msgspec.json.decode(set_by_script[1]))) if set_by_script else ""
    return page_of(read_markup(text), title)


FRAMEWORKS: dict[FrameworkName, Framework] = {
    "html": Framework(write=write_html, read=lambda text: page_of(read_markup(text)), suffix=".html"),
    "react": Framework(write=write_react, read=lambda text: page_of(read_jsx(text)), suffix=".jsx"),
    "vue": Framework(write=write_vue, read=_read_vue, suffix=".vue"),
    "svelte": Framework(write=write_svelte, read=lambda text: page_of(read_svelte(text)), suffix=".svelte"),
    "tkinter": Framework(
        write=write_tkinter, read=read_tkinter, suffix=".py", loses=frozenset({"language", "autocomplete", "size"})
    ),
    "pyside6": Framework(write=write_qt, read=read_qt, suffix=".py", loses=frozenset({"autocomplete"})),
    "textual": Framework(
        write=write_textual, read=read_textual, suffix=".py", loses=frozenset({"language", "autocomplete", "size"})
    ),
    "flutter": Framework(write=write_flutter, read=read_flutter, suffix=".dart"),
    "swiftui": Framework(write=write_swiftui, read=read_swiftui, suffix=".swift"),
}


_BY_SUFFIX: dict[str, FrameworkName] = {
    ".html": "html",
    ".htm": "html",
    ".jsx": "react",
    ".tsx": "react",
    ".js": "react",
    ".vue": "vue",
    ".svelte": "svelte",
    ".dart": "flutter",
    ".swift": "swiftui",
}
_BY_CODE: tuple[tuple[FrameworkName, str], ...] = (
    ("textual", r"^\s*(?:from|import) textual\b"),
    ("pyside6", r"^\s*(?:from|import) (?:PySide6|PySide2|PyQt5|PyQt6)\b"),
    ("tkinter", r"^\s*(?:from|import) (?:tkinter|Tkinter)\b"),
    ("flutter", r"^\s*import ['\"]package:flutter/"),
    ("swiftui", r"^\s*import SwiftUI\b"),
    ("svelte", r"<svelte:\w+|\$props\(\)|\{#(?:if|each|await)\b"),
    ("vue", r"<script setup\b|^<template>"),
    ("react", r"\bclassName=|\bfrom ['\"]react['\"]|return \(\s*<"),
    ("html", r"<!doctype html|<html\b|<(?:body|form|main|div|p|h1|input|button|label)\b"),
)
_IN_WORDS: tuple[tuple[FrameworkName, str], ...] = (
    ("react", r"react(?:\.js)?|jsx"),
    ("vue", r"vue(?:\.js)?"),
    ("svelte", r"svelte"),
    ("tkinter", r"tkinter|tk"),
    ("pyside6", r"pyside6?|pyqt\d?|qt"),
    ("textual", r"textual"),
    ("flutter", r"flutter|dart"),
    ("swiftui", r"swift ?ui"),
    ("html", r"html"),
)


def carried(page: Element, framework: Framework) -> Element:
    """Return a page as a framework's code says it, and reading that code finds it."""
    lost = {name: getattr(Element(kind=page.kind), name) for name in framework.loses}
    children = tuple(carried(child, framework) for child in page.children)
    return msgspec.structs.replace(page, **lost, children=children)


def framework_in(description: str) -> FrameworkName | None:
    """Return the framework that a description names: `in React`, `with Tkinter`."""
    for name, words in _IN_WORDS:
        if re.search(
            rf"\b(?:in|using|with|for|as|an?)\s+(?:plain\s+)?(?:{words})\b", description[:2_000], re.IGNORECASE
        ):
            return name
    return None


def framework_of(file_name: str, code: str) -> FrameworkName:
    """Return the framework of a file, by its name, else by what its code imports or is like."""
    suffix = f".{file_name.rpartition('.')[2].lower()}" if "." in file_name else ""
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    for name, sign in _BY_CODE:
        if re.search(sign, code[:100_000], re.MULTILINE | re.IGNORECASE):
            return name
    known = ", ".join(NAMES)
    raise RequestError(
        f"{file_name or 'the code'} is of no framework that is known; name one by --framework: {known}",
        param="framework",
    )
