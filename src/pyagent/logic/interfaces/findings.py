"""What an audit finds."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault: the criterion of WCAG 2.2 it is against, the element and its line, its figure, and what mends it."""

    rule: str
    criterion: str
    element: str
    line: int = 0
    figure: str
    mend: str

    def __str__(self) -> str:
        place = f" (line {self.line})" if self.line else ""
        return f"{self.criterion}: {self.element}{place}: {self.figure}; {self.mend}"
