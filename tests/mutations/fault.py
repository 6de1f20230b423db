"""A fault that a test must notice: a piece of source that stands exactly once, and what it becomes.

In Rust `FAULT` is true while the fault is put in, so that one build holds all of them. `tests` are given to pytest; in
Rust they run over the extension, as users do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """Replaces `old` by `new` in the file `path`; `tests` notice it."""

    name: str
    path: str
    old: str
    new: str
    tests: str

    @property
    def is_rust(self) -> bool:
        """Whether it needs a build."""
        return self.path.endswith(".rs")
