"""Complexity in JavaScript, TypeScript, Rust and Go, as ESLint, rust-code-analysis and gocyclo count it."""

from __future__ import annotations

import math
import time

import pytest

from pyagent.logic.code.tree_metrics import tree_metrics

SCRIPT = b"""
function plain() {}
const arrow = (a = 1, {b = 2}) => a?.b?.(a) ?? b;
class Box {
  field = 1 && 2;
  shown = () => { if (x) {} };
  static { if (y) {} }
  get size() { try {} catch {} }
  many(x) {
    for (const i of x) { while (i) {} }
    do { x ||= 1; } while (x && y);
    switch (x) { case 1: case 2: break; default: }
    return x ? [1].map(function () { return x || y; }) : 0;
  }
}
const held = { key: function () { for (;;) {} } };
"""
RUST = b"""
impl<T> Shelf<T> {
    fn find(&self, n: i32) -> Result<i32, E> {
        let early = self.first()?;
        if n > 0 && early { return Ok(1); }
        match n { 0 if early || n > 1 => {} 1 | 2 => {} _ => {} }
        loop { break; }
        for _ in 0..3 { while let Some(x) = self.next() {} }
        Ok(self.all.iter().map(|x| if *x { 1 } else { 2 }).sum())
    }
}
fn outer() { fn inner() { if a {} } let Some(x) = y else { return }; }
"""
GO = b"""package main

var handler = func() { if ok {} }
var table = map[string]func(){"a": func() { if ok {} }}

func (s *Shelf[T]) Find(n int) {
	if n > 0 && n < 9 || n == 11 { }
	for i := range n { }
	switch n { case 1, 2: case 3: default: }
	select { case <-c: default: }
	func() { if n > 1 { } }()
}
"""


@pytest.mark.parametrize(
    ("language", "source", "expected"),
    [
        (
            "JavaScript",
            SCRIPT,
            [
                ("plain", 2, 1),
                ("arrow", 3, 6),
                ("Box.shown", 6, 2),
                ("Box.size", 8, 2),
                ("Box.many", 9, 9),
                ("<anonymous>", 13, 2),
                ("key", 16, 2),
            ],
        ),
        (
            "TypeScript",
            b"class A { m(a: number = 1, b?: string): a is B { return this.x!.y?.z?.() as any } }\n"
            b"abstract class C { abstract n(): void }\nfunction f<T>(x: T = d) { if (x) {} }\n",
            [("A.m", 1, 4), ("f", 3, 3)],
        ),
        ("Rust", RUST, [("Shelf.find", 3, 13), ("outer", 12, 1), ("inner", 12, 2)]),
        ("Go", GO, [("handler", 3, 2), ("Shelf.Find", 6, 9)]),
    ],
)
def test_known_complexities(language: str, source: bytes, expected: list[tuple[str, int, int]]) -> None:
    """Each function has the decisions that are its own; names have their class, lines count from 1."""
    metrics = tree_metrics(language, source)
    assert [(one.name, one.line, one.complexity) for one in metrics.functions] == expected
    assert metrics.fault == ""


def test_maintainability_is_radons_formula() -> None:
    """Halstead's volume of names, numbers, texts and signs; lines of code; comments; the functions' complexity."""
    source = b'// why\nfunction f(a) {\n\n  return a ? "x" : 2; /* so\n it is */\n}\n'
    # function ( { return ? : ; are operators, f a a "x" 2 operands: 5 and 7 of 4 and 7 kinds.
    volume = 12 * math.log2(4 + 7)
    comments = math.sqrt(2.46 * math.radians(100 * 3 / 3))
    index = 171 - 5.2 * math.log(volume) - 0.23 * 2 - 16.2 * math.log(3) + 50 * math.sin(comments)
    assert tree_metrics("JavaScript", source).maintainability == pytest.approx(min(index * 100 / 171, 100.0), abs=1e-9)
    assert tree_metrics("Go", b"").maintainability == 100.0


def test_hostile_sources_are_read_as_far_as_they_go() -> None:
    """Broken, deep and binary texts have a fault or none, and never an exception."""
    broken = tree_metrics("Go", b"package a\nfunc f() { if a {} }\nfunc (((\n")
    assert [(one.name, one.complexity) for one in broken.functions] == [("f", 2)]
    assert broken.fault == "line 3 is no Go that can be read"
    for language in ("JavaScript", "TypeScript", "TSX", "Rust", "Go"):
        for source in (b"(" * 3_000, b"a?" * 2_000, b"\xff\x00\xfe" * 999, b"if(x){" * 3_000, b"`${" * 1_000):
            assert tree_metrics(language, source).maintainability <= 100


def test_long_texts_of_deep_nests_are_given_up() -> None:
    """A text on which the query would work for minutes is refused; deep nests of functions take no such time."""
    started = time.monotonic()
    with pytest.raises(ValueError, match="deeper than 1,000 levels"):
        tree_metrics("JavaScript", b"f()\n" + b"`${" * 100_000)
    assert len(tree_metrics("JavaScript", b"function f(){" * 2_000 + b"}" * 2_000).functions) == 2_000
    assert time.monotonic() - started < 5
