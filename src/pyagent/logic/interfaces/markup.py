"""Reads HTML, Vue's templates, Svelte and JSX as tags. What is computed at run time is kept as `{its source}`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any, cast

from pyagent.core.errors import RequestError
from pyagent.logic.code.trees import load_grammar
from pyagent.logic.interfaces.tags import Attributes, Tag

_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_ENDED_BY = {
    "li": frozenset({"li"}),
    "option": frozenset({"option"}),
    "tr": frozenset({"tr", "td", "th"}),
    "td": frozenset({"td", "th"}),
    "th": frozenset({"td", "th"}),
    "p": frozenset({"p"}),
    "a": frozenset({"a"}),
}
"""Tags that end an open one of these without its end tag."""
_MAX_DEPTH = 200
_MARK = re.compile("\ue000(\\d+)\ue001")
_REACT_NAMES = {"classname": "class", "htmlfor": "for", "defaultvalue": "value", "defaultchecked": "checked"}
_STYLE_PAIR = re.compile(r"(\w+)\s*:\s*(\"[^\"\n]*\"|'[^'\n]*'|[\w.-]+)")


def read_markup(text: str) -> Tag:
    """Return a document of HTML, or a component of Vue, as tags below one without a name."""
    return _parsed(text, [])


def read_svelte(text: str) -> Tag:
    """Return a component of Svelte as tags below one without a name; scripts and styles are kept as they are."""
    sources: list[str] = []
    parts = re.split(r"(<(?:script|style)\b[^>]*>.*?</(?:script|style)\s*>)", text, flags=re.DOTALL | re.IGNORECASE)
    masked = "".join(part if number % 2 else _masked(part, sources) for number, part in enumerate(parts))
    return _parsed(masked, sources)


def read_jsx(text: str) -> Tag:
    """Return the JSX of a module as tags below one without a name. Raises `RequestError` for what is no JavaScript."""
    try:
        tree_sitter, language = load_grammar("TSX")
    except ImportError as error:
        message = "reading React needs packages that are not installed: pip install tree-sitter tree-sitter-typescript"
        raise RequestError(message, code="no_parser") from error
    source = text.encode("utf-8", "replace")
    root: Any = tree_sitter.Parser(language).parse(source).root_node
    if root.has_error:
        raise RequestError(f"line {_first_error(root)}: this is not JSX that can be read")
    return Tag("", {}, [*_Jsx(source).outermost(root)])


def _parsed(text: str, sources: list[str]) -> Tag:
    reader = _Reader(sources)
    reader.feed(text)
    reader.close()
    return reader.root


class _Reader(HTMLParser):
    """Builds tags, as browsers do where an end tag is left out."""

    def __init__(self, sources: list[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Tag("", {}, [])
        self._open = [self.root]
        self._sources = sources

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        ended = _ENDED_BY.get(tag, frozenset())
        while self._open[-1].name in ended:
            self._open.pop()
        if len(self._open) > _MAX_DEPTH:
            raise RequestError(f"line {self.getpos()[0]}: tags are nested more than {_MAX_DEPTH} deep")
        attributes = {name.lower(): True if value is None else self._text(value) for name, value in attrs}
        one = Tag(tag, _plain_names(attributes), [], self.getpos()[0])
        self._open[-1].children.append(one)
        if tag not in _VOID:
            self._open.append(one)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        depths = [depth for depth, one in enumerate(self._open) if one.name == tag and depth]
        if depths:
            del self._open[depths[-1] :]

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(self._text(data))

    def _text(self, text: str) -> str:
        return _MARK.sub(lambda mark: self._sources[int(mark[1])], text)


def _plain_names(attributes: Attributes) -> Attributes:
    """Return attributes by HTML's names: Vue's `:alt="x"` is an `alt` that is computed."""
    plain: Attributes = {}
    for name, value in attributes.items():
        bound = name.removeprefix("v-bind").startswith(":") and len(name) > 1
        plain[name.removeprefix("v-bind").removeprefix(":") if bound else name] = f"{{{value}}}" if bound else value
    return plain


def _masked(text: str, sources: list[str]) -> str:
    """Return a text whose `{expressions}` are marks, so that their signs are taken for no tags."""
    pieces: list[str] = []
    at = 0
    text = text.replace("\ue000", " ").replace("\ue001", " ")
    while (start := text.find("{", at)) >= 0:
        end = _end_of_expression(text, start)
        source = text[start + 1 : end - 1]
        sources.append(_said(source))
        pieces += [text[at:start], f"\ue000{len(sources) - 1}\ue001"]
        pieces.append("\n" * source.count("\n"))
        at = end
    return "".join([*pieces, text[at:]])


_SIGNS = re.compile(r"[{}]|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`")


def _end_of_expression(text: str, start: int) -> int:
    depth = 0
    for sign in _SIGNS.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(sign[0], 0)
        if depth == 0:
            return sign.end()
    line = text.count("\n", 0, start) + 1
    raise RequestError(f"line {line}: a {{ is not closed")


def _said(source: str) -> str:
    """Return what an expression says: a string's text, else its source in braces."""
    stripped = source.strip()
    if (
        len(stripped) > 1
        and stripped[0] == stripped[-1]
        and stripped[0] in "\"'`"
        and stripped[0] not in stripped[1:-1]
    ):
        try:
            return cast("str", json.loads(f'"{stripped[1:-1]}"', strict=False))
        except ValueError:
            return stripped[1:-1]
    return f"{{{stripped}}}"


class _Jsx:
    """Walks a tree of JSX."""

    def __init__(self, source: bytes) -> None:
        self._source = source

    def outermost(self, root: Any) -> Iterator[Tag]:
        """Yield the elements that stand in no other."""
        left = [root]
        while left:
            node = left.pop()
            if node.type in {"jsx_element", "jsx_self_closing_element", "jsx_fragment"}:
                yield self._tag(node, 0)
            else:
                left.extend(reversed(node.children))

    def _text(self, node: Any) -> str:
        return self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _tag(self, node: Any, depth: int) -> Tag:
        if depth > _MAX_DEPTH:
            raise RequestError(f"line {node.start_point[0] + 1}: tags are nested more than {_MAX_DEPTH} deep")
        opening = node.named_children[0] if node.type == "jsx_element" else node
        name = opening.child_by_field_name("name")
        tag = Tag("" if name is None else self._text(name).lower(), {}, [], node.start_point[0] + 1)
        for child in opening.named_children:
            if child.type == "jsx_attribute":
                self._add_attribute(tag, child)
        if node.type != "jsx_self_closing_element":
            tag.children = [*self._children(node, depth)]
        return tag

    def _children(self, node: Any, depth: int) -> Iterator[Tag | str]:
        for child in node.named_children:
            match child.type:
                case "jsx_text" | "html_character_reference":
                    yield unescape(self._text(child))
                case "jsx_element" | "jsx_self_closing_element":
                    yield self._tag(child, depth + 1)
                case "jsx_expression":
                    inner = [*self._inner(child, depth + 1)]
                    yield from inner or [_said(self._text(child)[1:-1])]
                case _:
                    pass

    def _inner(self, node: Any, depth: int) -> Iterator[Tag]:
        """Yield the elements inside an expression: what `&&`, `?:` or `map` show."""
        left = [node]
        while left:
            one = left.pop()
            if one.type in {"jsx_element", "jsx_self_closing_element"}:
                yield self._tag(one, depth)
            else:
                left.extend(reversed(one.named_children))

    def _add_attribute(self, tag: Tag, node: Any) -> None:
        name = self._text(node.named_children[0]).lower()
        name = _REACT_NAMES.get(name, name)
        if len(node.named_children) == 1:
            tag.attributes[name] = True
            return
        value = node.named_children[1]
        text = self._text(value)
        if value.type != "jsx_expression":
            tag.attributes[name] = unescape(text[1:-1])
        elif name == "style":
            tag.attributes[name] = _css_of(text)
        else:
            said = _said(text[1:-1])
            tag.attributes[name] = True if said == "{true}" else said


def _css_of(style: str) -> str:
    """Return the rules of an object of style: numbers are pixels."""
    pairs = ((name, value.strip("\"'")) for name, value in _STYLE_PAIR.findall(style))
    return "; ".join(f"{_kebab(name)}: {value + 'px' if value.isdigit() else value}" for name, value in pairs)


def _kebab(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: f"-{match[0].lower()}", name)


def _first_error(root: Any) -> int:
    left = [root]
    while left:
        node = left.pop()
        if node.is_error or node.is_missing:
            return node.start_point[0] + 1
        left.extend(child for child in reversed(node.children) if child.has_error or child.is_missing)
    return 1
