"""Elements found again: by name, role or content hash, in the pages of files that were read before.

A file is known by its place, size and times: where they are as they were, it is not read again. Files and pages are
bounded in number and bytes, the least recently used go first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyagent.core.lru import ByteBoundedLru
from pyagent.logic.interfaces.elements import Element, Kind, walk

_MAX_BYTES = 16 << 20
_MAX_FILES = 500
_MAX_FOUND = 20
_ROLES: dict[str, tuple[Kind, ...]] = {
    "button": ("button",),
    "link": ("link",),
    "image": ("image",),
    "picture": ("image",),
    "heading": ("heading",),
    "checkbox": ("checkbox",),
    "box": ("checkbox", "input"),
    "field": ("input", "area", "select"),
    "input": ("input", "area"),
    "textarea": ("area",),
    "select": ("select",),
    "dropdown": ("select",),
    "radio": ("radio",),
    "table": ("table",),
    "list": ("list",),
    "tab": ("tab",),
    "progress": ("progress",),
    "text": ("text",),
    "group": ("group",),
    "form": ("page",),
    "page": ("page",),
}
_FILLERS = frozenset(
    {
        "where",
        "is",
        "the",
        "a",
        "an",
        "find",
        "which",
        "line",
        "of",
        "in",
        "on",
        "me",
        "show",
        "are",
        "what",
        "element",
        "for",
        "all",
        "has",
        "with",
        "code",
        "and",
    }
)
_HASH = re.compile(r"#([0-9a-f]{12})")


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An element where it stands: its file and line, the names of what it is in, and the hash of what it says."""

    path: str
    line: int
    kind: Kind
    text: str
    id: str = ""
    inside: str = ""
    hash: str


class _File(NamedTuple):
    stamp: tuple[int, int, int, int]
    key: str


class ElementCache:
    """Pages by the hash of their code, and files by what the file system says of them."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._pages: ByteBoundedLru[str, Element] = ByteBoundedLru(lambda num_bytes: num_bytes <= max_bytes)
        self._files: ByteBoundedLru[Path, _File] = ByteBoundedLru(lambda _: True, max_entries=_MAX_FILES)
        self._paths: dict[Path, None] = {}

    def page_of_file(self, path: Path) -> Element | None:
        """Return a file's page without reading it; nothing where it was not read, or changed since."""
        file = self._files.get(path)
        if file is None or file.stamp != stamp_of(path):
            return None
        return self._pages.get(file.key)

    def page_of_code(self, framework: str, code: str) -> Element | None:
        """Return the page of code that was read before, in whatever file."""
        return self._pages.get(_key(framework, code))

    def keep(
        self, framework: str, code: str, page: Element, path: Path | None, stamp: tuple[int, int, int, int] | None
    ) -> None:
        """Keep a page; that of a file with what was known of it before it was read."""
        key = _key(framework, code)
        self._pages.put(key, page, 2 * len(msgspec.json.encode(page)))
        if path is not None and stamp is not None:
            self._files.put(path, _File(stamp, key), 1)
            self._paths[path] = None
            for gone in [each for each in self._paths if self._files.peek(each) is None]:
                del self._paths[gone]

    @property
    def paths(self) -> list[Path]:
        """The files whose pages are kept."""
        return list(self._paths)


def stamp_of(path: Path) -> tuple[int, int, int, int] | None:
    """Return what the file system says of a file, that changes with it; nothing where there is none."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns


def _key(framework: str, code: str) -> str:
    return f"{framework}:{hashlib.sha256(code.encode('utf-8', 'replace')).hexdigest()}"


def content_hash(element: Element) -> str:
    """Return the hash of what an element says, wherever it stands: 12 hexadecimal digits."""
    said = msgspec.structs.replace(element, line=0, children=())
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:12]


def find(pages: Sequence[tuple[str, Element]], query: str) -> list[Found]:
    """Return the elements of pages, by their files' names, that a query fits best: `the save button`, `#hash`."""
    asked = query[:500]
    if hashed := _HASH.search(asked):
        return [each for name, page in pages for each in _places(name, page, "") if each.hash == hashed[1]][:_MAX_FOUND]
    words = [word for word in re.findall(r"\w+", asked.lower()) if word not in _FILLERS]
    roles: list[Kind] = [kind for word in words for kind in _roles_of(word)]
    names = [word for word in words if word not in _ROLES and word.removesuffix("s") not in _ROLES]
    scored = [
        (_score(each, roles, names, " ".join(names)), each) for name, page in pages for each in _places(name, page, "")
    ]
    best = max((score for score, _ in scored), default=0)
    return [each for score, each in scored if score == best and score > 0][:_MAX_FOUND]


def _roles_of(word: str) -> tuple[Kind, ...]:
    """Return the kinds that a word names, in the plural too."""
    return _ROLES.get(word) or _ROLES.get(word.removesuffix("s"), ())


def _score(found: Found, roles: Sequence[Kind], names: Sequence[str], name: str) -> int:
    """Return how well an element fits: its role must be the one asked for, and so must a word of its name."""
    if roles and found.kind not in roles:
        return 0
    text = found.text.lower()
    own = set(re.findall(r"[^\W_]+", f"{text} {found.id}"))
    num_shared = sum(word in own for word in names)
    if names and not num_shared:
        return 0
    return 2 * num_shared + 3 * (bool(names) and name in {text.rstrip(" *"), found.id}) + bool(roles)


def _places(name: str, page: Element, inside: str) -> Iterator[Found]:
    left = [(page, inside)]
    while left:
        element, around = left.pop()
        yield Found(
            path=name,
            line=element.line,
            kind=element.kind,
            text=element.text,
            id=element.id,
            inside=around,
            hash=content_hash(element),
        )
        is_named = element.kind in {"page", "group", "tab"} and element.text
        here = f"{around} > {element.text}".removeprefix(" > ")[:300] if is_named else around
        left.extend((child, here) for child in reversed(element.children))


def num_elements(page: Element) -> int:
    """Return how many elements a page has, itself included."""
    return sum(1 for _ in walk(page))
