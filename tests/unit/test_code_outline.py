"""Outlines of source files: what they define and import, in each language, and what comes of broken ones."""

from __future__ import annotations

import sys

import pytest

from pyagent.logic.code.outline import Import, Outline, Symbol, first_sentence, outline_of
from pyagent.logic.code.trees import MISSING, load_grammar

PYTHON = '''"""Sends letters. They go by post."""

from __future__ import annotations

import os.path
from . import stamps
from ..people import Person as P


class Letter(P, metaclass=type):
    """A letter to a person."""

    async def send(self, when: int = 3) -> bool:
        """Put it in the box. Then wait."""


def write(*, text: str) -> Letter: ...
'''

SCRIPT = """// Counts clicks.
import { Button } from './button.js';
export { Page } from './page';

/** A counter of clicks. It starts at zero. */
export class Counter extends Base {
  add(by: number): void {}
}

interface Named { name: string }
type Names = Named[];
enum Colour { Red }

// Says hello.
export const hello = (name: string) => `hello ${name}`;
const limit = 5;
"""

RUST = """//! Reads tokens.
use crate::files::Reader;
mod tables;

/// A token of a text.
#[derive(Debug)]
pub struct Token { id: u32 }

impl<T> Reader<T> {
    /// Read one.
    pub fn next(&mut self) -> Option<Token> { None }
}

pub trait Source { fn read(&self); }
macro_rules! token { () => {} }
"""

GO = """// Package wire sends frames.
package wire

import (
	"fmt"
	"example.org/app/frames"
)

// Conn is a connection.
type Conn struct { id int }

// Send sends a frame.
func (c *Conn) Send(f frames.Frame) error { return nil }

func Dial(address string) (*Conn, error) { return nil, nil }
"""


def test_python_is_read_by_its_own_parser() -> None:
    """Classes, functions and methods with their first sentences; imports with their dots; nothing is executed."""
    outline = outline_of("post/letters.py", PYTHON)
    assert outline == Outline(
        "Python",
        "Sends letters. They go by post.",
        [
            Symbol("class", "Letter", 10, "class Letter(P, metaclass=type)", "A letter to a person."),
            Symbol("method", "Letter.send", 13, "async def send(self, when: int=3) -> bool", "Put it in the box."),
            Symbol("function", "write", 17, "def write(*, text: str) -> Letter"),
        ],
        [
            Import("__future__", ("annotations",)),
            Import("os.path"),
            Import("", ("stamps",), 1),
            Import("people", ("Person",), 2),
        ],
    )


def test_scripts_are_read_by_tree_sitter() -> None:
    """TypeScript's classes, types and functions kept in names, each with the comment before it."""
    outline = outline_of("counter.ts", SCRIPT)
    assert outline.doc == "Counts clicks."
    assert [(each.kind, each.name, each.line, each.doc) for each in outline.symbols] == [
        ("class", "Counter", 6, "A counter of clicks."),
        ("method", "Counter.add", 7, ""),
        ("type", "Named", 10, ""),
        ("type", "Names", 11, ""),
        ("type", "Colour", 12, ""),
        ("function", "hello", 15, "Says hello."),
    ]
    assert outline.symbols[0].signature == "class Counter extends Base"
    assert [each.target for each in outline.imports] == ["./button.js", "./page"]


def test_rust_and_go_are_read_by_tree_sitter() -> None:
    """Methods have the names of their types; imports are as the file says them."""
    rust, go = outline_of("lib.rs", RUST), outline_of("wire.go", GO)
    assert rust.doc == "Reads tokens."
    assert [(each.kind, each.name, each.doc) for each in rust.symbols] == [
        ("class", "Token", "A token of a text."),
        ("method", "Reader.next", "Read one."),
        ("type", "Source", ""),
        ("macro", "token", ""),
    ]
    assert [each.target for each in rust.imports] == ["crate::files::Reader", "mod tables"]
    assert go.doc == "Package wire sends frames."
    assert [(each.kind, each.name, each.signature) for each in go.symbols] == [
        ("type", "Conn", "type Conn"),
        ("method", "Conn.Send", "func (c *Conn) Send(f frames.Frame) error"),
        ("function", "Dial", "func Dial(address string) (*Conn, error)"),
    ]
    assert [each.target for each in go.imports] == ["fmt", "example.org/app/frames"]


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("a.py", "def (", "no Python of this version: invalid syntax, line 1"),
        ("a.py", "a = " + "(" * 5000, "no Python of this version: too many nested parentheses, line 1"),
        ("a.py", "x = " + "-" * 20_000 + "1", "no Python of this version"),
        ("a.py", "def f(a=" + "+".join("1" * 3000) + "): ...", ""),
        ("a.rs", "pub fn good() {}\nfn bad( {", "some of it is not read: it has faults of syntax"),
        ("a.go", "func () x() {}", ""),
        ("a.ts", "export " * 5000 + "{" * 5000, "some of it is not read"),
        ("a.py", "x = 1\n" * 200_000, "longer than 1,000,000 characters"),
    ],
)
def test_broken_files_have_an_outline_that_says_why(path: str, text: str, fault: str) -> None:
    """A file with faults, or made to hurt, ends in a sentence at once."""
    assert fault in outline_of(path, text).fault


def test_missing_parser_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the other languages have no outline, and the fault names it."""
    load_grammar.cache_clear()
    monkeypatch.setitem(sys.modules, "tree_sitter_rust", None)
    assert outline_of("a.rs", RUST) == Outline("Rust", fault=MISSING)


def test_first_sentence_ends_at_a_sentence() -> None:
    """Abbreviations and numbers end none; a text without an end is whole, on one line."""
    assert first_sentence("Use e.g. 1.5 of it. Then more.") == "Use e.g. 1.5 of it."
    assert first_sentence("one\n  line\n\nmore.") == "one line"
