"""What an audit of code found: numbers by file and function, copies, names that nothing asks for, and the trend."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyagent.core.fleet.file_access import short_path

_MAX_UNREAD = 20


class FunctionHealth(msgspec.Struct, frozen=True):
    """A function, the line it starts on, and its cyclomatic complexity."""

    name: str
    line: int
    complexity: int


class FileHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file. `maintainability` goes from 0 to 100; it is None when the file could not be read, with the `error`."""

    path: str
    maintainability: float | None
    functions: list[FunctionHealth]
    error: str | None = None
    language: str = "Python"

    @property
    def complexity(self) -> int:
        """The complexity of all its functions."""
        return sum(function.complexity for function in self.functions)


class RankedFunction(msgspec.Struct, frozen=True):
    """A function among the most complex."""

    path: str
    name: str
    line: int
    complexity: int


class Place(msgspec.Struct, frozen=True):
    """Lines of a file, from 1, both included."""

    path: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{short_path(self.path)}:{self.first}-{self.last}"


class Duplicate(msgspec.Struct, frozen=True):
    """A block of `lines` telling lines (no blank ones, comments, imports) that stands in each of the places."""

    lines: int
    places: list[Place]


class UnnamedFunction(msgspec.Struct, frozen=True):
    """A function whose name stands nowhere but where it is defined: perhaps dead code, perhaps called from outside."""

    path: str
    name: str
    line: int


class Snapshot(msgspec.Struct, frozen=True):
    """The code as it was in a commit. `complexity` is that of all functions, `complex_functions` those above 10."""

    commit: str
    date: str
    files: int
    functions: int
    complexity: int
    complex_functions: int
    maintainability: float | None


class Hotspot(msgspec.Struct, frozen=True):
    """A file that is complex and changes often: where faults are likeliest, and a change for the better pays most."""

    path: str
    commits: int
    complexity: int


class Trend(msgspec.Struct, frozen=True):
    """Snapshots from the oldest to the newest, and the files where most commits meet most complexity."""

    snapshots: list[Snapshot]
    hotspots: list[Hotspot]
    commits: int


class CodeHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All files, the most complex functions (the worst first), copies, names that nothing asks for, and the trend.

    `not_read` counts the files of each language whose parser is not installed. `report` is the whole of it as text,
    where a format was asked for.
    """

    files: list[FileHealth]
    most_complex: list[RankedFunction]
    seconds: float
    duplicates: list[Duplicate] = []
    unnamed: list[UnnamedFunction] = []
    trend: Trend | None = None
    not_read: dict[str, int] = {}
    top: int = 3
    report: str = ""

    def __str__(self) -> str:
        if self.report:
            return self.report
        parts = [self._worst_functions(), *self._maintainability(), *self._duplicates(), *self._unnamed()]
        parts += trend_lines(self.trend, self.top) if self.trend else []
        unread = [file for file in self.files if file.error]
        parts += [f"unreadable: {short_path(file.path)}: {file.error}" for file in unread[:_MAX_UNREAD]]
        if len(unread) > _MAX_UNREAD:
            parts.append(f"unreadable: and {len(unread) - _MAX_UNREAD:,} more")
        if self.not_read:
            counts = ", ".join(f"{count:,} of {language}" for language, count in sorted(self.not_read.items()))
            parts.append(f"left out: {counts}: the extra `code`, which reads them, is not installed")
        return "\n".join(parts)

    def _worst_functions(self) -> str:
        unread = sum(file.maintainability is None for file in self.files)
        head = f"{count_of(len(self.files), 'file')}{f', {unread} of them unreadable' if unread else ''}"
        head += f", {self.seconds:.2g} s"
        count = len(self.most_complex)
        if not count:
            return head if any(file.functions for file in self.files) else f"{head}; no functions"
        head = f"{count} most complex functions of {head}" if count > 1 else f"most complex function of {head}"
        rows = [f"{row.complexity:>5}  {short_path(row.path)}:{row.line}  {row.name}" for row in self.most_complex]
        return "\n".join([head, *rows])

    def _maintainability(self) -> list[str]:
        """Return the mean of the files, and the files that are worst, on a line each."""
        ranked = lowest(self.files)
        if not ranked:
            return []
        mean = sum(file.maintainability or 0.0 for file in ranked) / len(ranked)
        rows = [f"{file.maintainability:>5.0f}  {short_path(file.path)}" for file in ranked[: len(self.most_complex)]]
        return [f"maintainability {mean:.0f} of 100{', lowest:' if rows else ''}", *rows]

    def _duplicates(self) -> list[str]:
        if not self.duplicates:
            return []
        copied = sum(one.lines * (len(one.places) - 1) for one in self.duplicates)
        rows = [f"{one.lines:>5}  {', '.join(map(str, one.places[:4]))}" for one in self.duplicates[: self.top]]
        rows = [
            f"{row} and {len(one.places) - 4} more" if len(one.places) > 4 else row
            for row, one in zip(rows, self.duplicates, strict=False)
        ]
        blocks = count_of(len(self.duplicates), "block")
        return [f"{copied:,} lines are copies, of {blocks}{', longest:' if rows else ''}", *rows]

    def _unnamed(self) -> list[str]:
        if not self.unnamed:
            return []
        rows = [f"       {short_path(one.path)}:{one.line}  {one.name}" for one in self.unnamed[: self.top]]
        functions = count_of(len(self.unnamed), "function")
        return [f"{functions} named nowhere else, perhaps dead{':' if rows else ''}", *rows]


def lowest(files: Sequence[FileHealth]) -> list[FileHealth]:
    """Return the files that have an index, the least maintainable first."""
    known = [file for file in files if file.maintainability is not None]
    return sorted(known, key=lambda file: (file.maintainability or 0.0, file.path))


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def trend_lines(trend: Trend, top: int) -> list[str]:
    """Return the trend as a table of text, and the hotspots."""
    lines = [
        f"over {count_of(trend.commits, 'commit')}:",
        "  date        commit      files  functions  complexity  above 10  maintainability",
    ]
    for one in trend.snapshots:
        index = "-" if one.maintainability is None else f"{one.maintainability:.1f}"
        lines.append(
            f"  {one.date}  {one.commit[:10]}  {one.files:>5,}  {one.functions:>9,}  {one.complexity:>10,}"
            f"  {one.complex_functions:>8,}  {index:>15}"
        )
    rows = [
        f"{one.commits:>5} commits, complexity {one.complexity:>4}  {short_path(one.path)}"
        for one in trend.hotspots[:top]
    ]
    return [*lines, *(["most changed and most complex:", *rows] if rows else [])]
