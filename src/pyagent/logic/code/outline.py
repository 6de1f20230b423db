"""The outline of a source file: what it says of itself, what it defines, and what it imports.

Python is read by its own parser; JavaScript, TypeScript, Rust and Go by tree-sitter, where the extra `code` is
installed. A file that cannot be read as its language has an outline that says why, and is never executed.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Literal

import msgspec

Kind = Literal["class", "function", "method", "type", "macro"]

LANGUAGES: dict[str, str] = {
    ".py": "Python",
    ".pyi": "Python",
    ".js": "JavaScript",
    ".jsx": "JavaScript",
    ".mjs": "JavaScript",
    ".cjs": "JavaScript",
    ".ts": "TypeScript",
    ".mts": "TypeScript",
    ".cts": "TypeScript",
    ".tsx": "TSX",
    ".rs": "Rust",
    ".go": "Go",
    ".md": "Markdown",
}
"""Languages by the suffix of a file's name."""
MAX_CHARACTERS = 1_000_000
"""A longer text has no outline: it was written by a program, and is data."""
_MAX_SIGNATURE = 160
_SENTENCE = re.compile(r".*?(?:(?<!e\.g)(?<!i\.e)[.!?](?= |$)|。)")


class Symbol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thing that a file defines: its name (a method's with its class), line from 1, signature, first sentence."""

    kind: Kind
    name: str
    line: int
    signature: str
    doc: str = ""


class Import(msgspec.Struct, frozen=True):
    """What a file asks for, as it says it; `level` counts the dots of a relative import of Python."""

    target: str
    names: tuple[str, ...] = ()
    level: int = 0


class Outline(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file's own words for what it is, what it defines and imports; `fault` says why there is no more."""

    language: str = ""
    doc: str = ""
    symbols: list[Symbol] = []
    imports: list[Import] = []
    fault: str = ""


def language_of(path: str) -> str:
    """Return the language of a file by its name; empty for one that is not known."""
    return LANGUAGES.get(PurePath(path).suffix.lower(), "")


def outline_of(path: str, text: str) -> Outline:
    """Return the outline of a file's text, by the language that its name tells."""
    language = language_of(path)
    if len(text) > MAX_CHARACTERS:
        return Outline(language, fault=f"longer than {MAX_CHARACTERS:,} characters")
    match language:
        case "Python":
            return _python(text)
        case "" | "Markdown":
            return Outline(language)
        case _:
            from pyagent.logic.code.trees import tree_outline

            return tree_outline(language, text)


def signature(text: str) -> str:
    """Return a declaration on one line, without what it contains."""
    line = " ".join(text.split()).rstrip("{:= ")
    return line if len(line) <= _MAX_SIGNATURE else f"{line[: _MAX_SIGNATURE - 1]}…"


def first_sentence(text: str) -> str:
    """Return the first paragraph's first sentence, on one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    found = _SENTENCE.match(paragraph)
    return found[0] if found else paragraph


def _python(text: str) -> Outline:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, which are the file's affair
            tree = ast.parse(text)
        doc = inspect.cleandoc(ast.get_docstring(tree) or "")
        return Outline("Python", doc, list(_symbols(tree.body, "")), list(_imports(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = getattr(error, "msg", None) or str(error) or type(error).__name__
        return Outline("Python", fault=f"no Python of this version: {said}, line {getattr(error, 'lineno', 0) or 1}")


def _symbols(body: Sequence[ast.stmt], owner: str) -> Iterator[Symbol]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(ast.unparse(base) for base in (*node.bases, *node.keywords))
            said = signature(f"class {owner}{node.name}" + (f"({bases})" if bases else ""))
            yield Symbol("class", f"{owner}{node.name}", node.lineno, said, _doc(node))
            if not owner:
                yield from _symbols(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            before = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            said = signature(f"{before} {node.name}({ast.unparse(node.args)}){returned}")
            yield Symbol("method" if owner else "function", f"{owner}{node.name}", node.lineno, said, _doc(node))


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return first_sentence(ast.get_docstring(node) or "")


def _imports(tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)
