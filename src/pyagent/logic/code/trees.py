"""Outlines by tree-sitter, whose parsers come with the extra `code`. Of a broken file there is what can be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import msgspec

from pyagent.logic.code.outline import Import, Kind, Outline, Symbol, first_sentence, signature

MISSING = "its parser comes with the extra `code`, which is not installed"
_MAX_DEPTH = 8


class Grammar(msgspec.Struct, frozen=True):
    """How a language names the parts that an outline has. `inside` are nodes that only wrap others."""

    module: str
    function: str
    symbols: dict[str, Kind]
    imports: frozenset[str]
    inside: frozenset[str]


_JAVASCRIPT_SYMBOLS: dict[str, Kind] = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "abstract_class_declaration": "class",
    "method_definition": "method",
    "abstract_method_signature": "method",
    "interface_declaration": "type",
    "type_alias_declaration": "type",
    "enum_declaration": "type",
    "variable_declarator": "function",
}
_JAVASCRIPT_INSIDE = frozenset(
    {
        "export_statement",
        "lexical_declaration",
        "variable_declaration",
        "class_body",
        "internal_module",
        "statement_block",
        "ambient_declaration",
        "expression_statement",
    }
)
_JAVASCRIPT_IMPORTS = frozenset({"import_statement", "export_statement"})
_GRAMMARS = {
    "JavaScript": Grammar(
        "tree_sitter_javascript", "language", _JAVASCRIPT_SYMBOLS, _JAVASCRIPT_IMPORTS, _JAVASCRIPT_INSIDE
    ),
    "TypeScript": Grammar(
        "tree_sitter_typescript", "language_typescript", _JAVASCRIPT_SYMBOLS, _JAVASCRIPT_IMPORTS, _JAVASCRIPT_INSIDE
    ),
    "TSX": Grammar(
        "tree_sitter_typescript", "language_tsx", _JAVASCRIPT_SYMBOLS, _JAVASCRIPT_IMPORTS, _JAVASCRIPT_INSIDE
    ),
    "Rust": Grammar(
        "tree_sitter_rust",
        "language",
        {
            "function_item": "function",
            "function_signature_item": "function",
            "struct_item": "class",
            "enum_item": "type",
            "union_item": "type",
            "trait_item": "type",
            "type_item": "type",
            "macro_definition": "macro",
        },
        frozenset({"use_declaration", "mod_item"}),
        frozenset({"impl_item", "declaration_list", "mod_item"}),
    ),
    "Go": Grammar(
        "tree_sitter_go",
        "language",
        {
            "function_declaration": "function",
            "method_declaration": "method",
            "type_spec": "type",
            "type_alias": "type",
        },
        frozenset({"import_spec"}),
        frozenset({"type_declaration", "import_declaration", "import_spec_list"}),
    ),
}
_VALUES_OF_FUNCTIONS = frozenset({"arrow_function", "function_expression", "generator_function", "function"})
_COMMENTS = frozenset({"comment", "line_comment", "block_comment"})
_ATTRIBUTES = frozenset({"attribute_item", "decorator"})


@cache
def load_grammar(language: str) -> tuple[Any, Any]:
    """Return the package tree_sitter and its grammar of a language; raises `ImportError` where one is not installed."""
    tree_sitter: Any = import_module("tree_sitter")  # optional, so its types cannot be relied on
    grammar = _GRAMMARS[language]
    return tree_sitter, tree_sitter.Language(getattr(import_module(grammar.module), grammar.function)())


def tree_outline(language: str, text: str) -> Outline:
    """Return the outline of a text in one of the languages that have a grammar here."""
    grammar = _GRAMMARS[language]
    try:
        tree_sitter, words = load_grammar(language)
    except ImportError:
        return Outline(language, fault=MISSING)
    source = text.encode("utf-8", "replace")
    root: Any = tree_sitter.Parser(words).parse(source).root_node
    reader = _Reader(grammar, source)
    found = list(reader.read(root, "", 0))
    return Outline(
        language,
        _first_comment(root, reader),
        [one for one in found if isinstance(one, Symbol)],
        [one for one in found if isinstance(one, Import)],
        "some of it is not read: it has faults of syntax" if root.has_error else "",
    )


class _Reader:
    """Walks a tree from the top, and into what wraps other things."""

    def __init__(self, grammar: Grammar, source: bytes) -> None:
        self._grammar = grammar
        self._source = source

    def text(self, node: Any) -> str:
        """Return a node's text."""
        return self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def read(self, node: Any, owner: str, depth: int) -> Iterator[Symbol | Import]:
        """Yield what stands below a node; names of methods begin with their `owner`."""
        for child in node.named_children:
            if child.type in self._grammar.imports:
                yield from self._import(child)
            if (symbol := self._symbol(child, owner)) is not None:
                yield symbol
                body = child.child_by_field_name("body")
                if symbol.kind == "class" and body is not None and depth < _MAX_DEPTH:
                    yield from self.read(body, f"{symbol.name}.", depth + 1)
            elif child.type in self._grammar.inside and depth < _MAX_DEPTH:
                yield from self.read(child, self._owner(child, owner), depth + 1)

    def _symbol(self, node: Any, owner: str) -> Symbol | None:
        kind = self._grammar.symbols.get(node.type)
        name = node.child_by_field_name("name")
        if kind is None or name is None:
            return None
        body = node.child_by_field_name("body")
        if node.type == "variable_declarator":
            value = node.child_by_field_name("value")
            if value is None or value.type not in _VALUES_OF_FUNCTIONS:
                return None
            body = value.child_by_field_name("body")
        elif node.type == "type_spec":
            body = node.child_by_field_name("type")
        end = node.end_byte if body is None else body.start_byte
        said = signature(self._source[node.start_byte : end].decode("utf-8", "replace").rstrip().removesuffix("=>"))
        if kind == "function" and owner:
            kind = "method"
        receiver = node.child_by_field_name("receiver")
        before = self._receiver(receiver) if receiver is not None else owner
        said = f"type {said}" if node.type in {"type_spec", "type_alias"} else said
        return Symbol(kind, f"{before}{self.text(name)}", node.start_point[0] + 1, said, self._doc(node))

    def _receiver(self, node: Any) -> str:
        """Return the type of a receiver of Go, `(s *Server[T])`, as `Server.`."""
        name = self.text(node).strip("()").rpartition(" ")[2].lstrip("*").partition("[")[0]
        return f"{name}." if name else ""

    def _owner(self, node: Any, owner: str) -> str:
        if node.type != "impl_item":
            return owner
        kind = node.child_by_field_name("type")
        return f"{self.text(kind).partition('<')[0]}." if kind is not None else owner

    def _doc(self, node: Any) -> str:
        """Return the first sentence of the comment before a node, or before what wraps it."""
        while node.parent is not None and node.parent.type in {
            "export_statement",
            "lexical_declaration",
            "type_declaration",
        }:
            node = node.parent
        lines: list[str] = []
        before, line = node.prev_named_sibling, node.start_point[0]
        while before is not None and before.type in _COMMENTS | _ATTRIBUTES and before.end_point[0] >= line - 1:
            if before.type in _COMMENTS:
                lines.append(self.comment(before))
            before, line = before.prev_named_sibling, before.start_point[0]
        return first_sentence("\n".join(reversed(lines)))

    def comment(self, node: Any) -> str:
        """Return a comment's words, without its signs."""
        lines = self.text(node).removeprefix("/*").removesuffix("*/").splitlines()
        return "\n".join(line.strip().lstrip("/!*").strip() for line in lines).strip()

    def _import(self, node: Any) -> Iterator[Import]:
        match node.type:
            case "use_declaration":
                yield Import(self.text(node.child_by_field_name("argument")))
            case "mod_item":
                if node.child_by_field_name("body") is None:
                    yield Import(f"mod {self.text(node.child_by_field_name('name'))}")
            case _:
                source = node.child_by_field_name("source") or node.child_by_field_name("path")
                if source is not None:
                    yield Import(self.text(source).strip("\"'`"))


def _first_comment(root: Any, reader: _Reader) -> str:
    """Return the comment that a file begins with, unless it is of the licence."""
    lines: list[str] = []
    last = -1
    for node in root.named_children:
        if node.type not in _COMMENTS or (lines and node.start_point[0] > last + 1):
            break
        lines.append(reader.comment(node))
        last = node.end_point[0] - (reader.text(node).endswith("\n"))
    said = "\n".join(lines).strip()
    return "" if "licen" in said.lower() or "copyright" in said.lower() or said.startswith("eslint") else said
