"""One answer's place in its grammar, and the masks of a step's rows: in one call for each backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.core.grammars import GrammarBackend, GrammarMatcher


@dataclass(frozen=True, slots=True)
class Grammar:
    """A matcher, and the backend of this name that computes its masks of `row_bytes` bytes."""

    matcher: GrammarMatcher
    backend: GrammarBackend
    backend_name: str
    row_bytes: int

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow any more."""
        return self.matcher.is_finished

    def mask(self) -> bytes:
        """One bit per token, set where allowed, least significant first. Raises `GrammarError` when it failed."""
        row = bytearray(self.row_bytes)
        self.backend.fill_masks([(self.matcher, 0)], memoryview(row))
        return bytes(row)

    def accept(self, token: int) -> None:
        """Go on by a token that the mask allowed. Raises `GrammarError` for any other."""
        self.matcher.accept(token)

    def fork(self) -> Grammar:
        """Return a grammar at the same place; neither moves the other."""
        return Grammar(self.matcher.copy(), self.backend, self.backend_name, self.row_bytes)
