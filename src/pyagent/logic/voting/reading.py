"""Reads ballots from what people have: lines such as `3: A > B = C`, CSV, JSON. Bounded, and never guessing.

A line's form goes with the method: `A > B = C` ranks, `A, B` approves, `A=3, B=-1` spends votes. A number in front is
how many ballots it counts as. CSV has a row for each ballot: columns `1st`, `2nd` ... hold options; or each option has
a column of ranks, of yes and no, or of votes. Columns `voter` and `weight` (or `count`) may stand beside them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import json_error
from pyagent.logic.voting.ballots import Ballot, Kind, Paper

MAX_BALLOTS = 100_000
MAX_FILE_CHARACTERS = 10_000_000
_MAX_CHARACTERS = 20_000
_WEIGHT = re.compile(r"(\d{1,12}(?:\.\d{1,6}|/\d{1,3})?)\s*[:x×]\s+(?=\S)", re.ASCII)
_PLACE_COLUMN = re.compile(r"(?:rank|choice|preference|place)?[ _-]*(\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
_WEIGHT_COLUMNS = frozenset({"weight", "count", "ballots"})
_YES = frozenset({"1", "x", "yes", "true"})
_NO = frozenset({"", "0", "no", "false"})


def read_lines(text: str, kind: Kind) -> list[Paper]:
    """Return the ballots of a text, one a line or between semicolons; `#` begins a comment."""
    lines = (
        read_line(part.strip(), kind, f"line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        for part in line.partition("#")[0].split(";")
        if part.strip()
    )
    return _bounded(lines)


def read_line(line: str, kind: Kind, place: str) -> Paper:
    """Return the ballot that a line is, or its fault."""
    if len(line) > _MAX_CHARACTERS:
        return Paper(place, line, fault=f"it has {len(line):,} characters; the most is {_MAX_CHARACTERS:,}")
    found = _WEIGHT.match(line)
    weight, rest = (found[1], line[found.end() :]) if found else (None, line)
    try:
        return Paper(place, line, _ballot_of(rest, kind, weight))
    except RequestError as error:
        return Paper(place, line, fault=str(error))


def _ballot_of(text: str, kind: Kind, weight: str | None) -> Ballot:
    if kind == "ranking":
        if "," in text:
            raise RequestError("ranks are separated by >, and equal ones by =; a comma is neither", param="ballots")
        groups = [[name for name in group.split("=") if name.strip()] for group in text.split(">")]
        return Ballot(ranking=[*groups], weight=weight)
    if ">" in text:
        form = "A, B" if kind == "approval" else "A=3, B=-1"
        raise RequestError(f"this method ranks nothing; write {form}", param="ballots")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if kind == "approval":
        return Ballot(approves=parts, weight=weight)
    votes: dict[str, int | float | str] = {}
    for part in parts:
        name, sign, number = part.rpartition("=")
        if not sign or name.strip() in votes:
            fault = f"it names {name.strip()} twice" if sign else f"{part[:40]!r} has no number; write A=3, B=-1"
            raise RequestError(fault, param="ballots")
        votes[name.strip()] = number.strip()
    return Ballot(votes=votes, weight=weight)


def read_items(items: Sequence[Ballot | str], kind: Kind) -> list[Paper]:
    """Return ballots of a program: structs, or lines."""
    papers = (
        read_line(item, kind, f"ballot {number}")
        if isinstance(item, str)
        else Paper(f"ballot {number}", msgspec.json.encode(item).decode(), item)
        for number, item in enumerate(items, 1)
    )
    return _bounded(papers)


def read_file(name: str, text: str, kind: Kind) -> list[Paper]:
    """Return the ballots of a file: JSON (a list of ballots or lines), CSV, else lines."""
    if len(text) > MAX_FILE_CHARACTERS:
        fault = f"{name} has {len(text):,} characters; the most is {MAX_FILE_CHARACTERS:,}"
        raise RequestError(f"{fault}; put equal ballots together: 3: A > B", param="files")
    suffix = name.lower().rpartition(".")[2]
    if suffix == "json":
        return read_items(_json(name, text), kind)
    return _bounded(_csv(name, text, kind)) if suffix == "csv" else read_lines(text, kind)


def _json(name: str, text: str) -> list[Ballot | str]:
    try:
        return msgspec.json.decode(text, type=list[Ballot | str])
    except msgspec.DecodeError as error:
        raise json_error(name, error, text.encode(errors="replace")) from error


def _csv(name: str, text: str, kind: Kind) -> Iterator[Paper]:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, list[str]())]
        columns = _Columns(name, header, kind)
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) and not cells[0].startswith("#"):
                yield columns.paper(cells, f"line {reader.line_num}")
    except csv.Error as error:
        raise RequestError(f"{name} is not CSV: {error} in line {reader.line_num}", param="files") from error


class _Columns:
    """What the columns of a CSV file mean."""

    def __init__(self, name: str, header: Sequence[str], kind: Kind) -> None:
        self.kind = kind
        self.names = list(header)
        lower = [cell.lower() for cell in header]
        self.voter = lower.index("voter") if "voter" in lower else None
        self.weight = next((place for place, cell in enumerate(lower) if cell in _WEIGHT_COLUMNS), None)
        self.rest = [place for place, cell in enumerate(header) if cell and place not in {self.voter, self.weight}]
        cells = [header[place] for place in self.rest]
        if not cells or len(set(cells)) < len(cells):
            text = f"{name}: its first line names the columns, each once: options, or 1st, 2nd ...; got {header[:6]}"
            raise RequestError(text, param="files")
        self.are_places = all(_PLACE_COLUMN.fullmatch(cell) for cell in cells)
        if self.are_places:
            self.rest.sort(key=lambda place: int(re.sub(r"\D", "", header[place])))
        if self.are_places and kind == "votes":
            raise RequestError(f"{name}: votes need a column for each option, not places", param="files")

    def paper(self, cells: list[str], place: str) -> Paper:
        """Return a row's ballot, or its fault."""
        text = ",".join(cells)
        if len(cells) > len(self.names) or len(text) > _MAX_CHARACTERS:
            fault = f"it has {len(cells)} cells and {len(text):,} characters; there are {len(self.names)} columns"
            return Paper(place, text, fault=fault)
        cells = [*cells, *[""] * (len(self.names) - len(cells))]
        weight = cells[self.weight] or None if self.weight is not None else None
        voter = cells[self.voter] if self.voter is not None else ""
        try:
            return Paper(place, text, msgspec.structs.replace(self._ballot(cells), weight=weight, voter=voter))
        except RequestError as error:
            return Paper(place, text, fault=str(error))

    def _ballot(self, cells: Sequence[str]) -> Ballot:
        given = {self.names[place]: cells[place] for place in self.rest}
        if self.are_places:
            named = [name for name in given.values() if name]
            return Ballot(approves=named) if self.kind == "approval" else Ballot(ranking=[*named])
        if self.kind == "approval":
            return Ballot(approves=[name for name, cell in given.items() if _is_yes(name, cell)])
        if self.kind == "votes":
            return Ballot(votes={name: cell for name, cell in given.items() if cell})
        return Ballot(ranking=_by_rank(given))


def _is_yes(name: str, cell: str) -> bool:
    if cell.lower() not in _YES | _NO:
        raise RequestError(f"{name} has {cell[:40]!r}, expected yes or no", param="ballots")
    return cell.lower() in _YES


def _by_rank(given: Mapping[str, str]) -> list[str | list[str]]:
    """Return the ranking that a rank for each option means; an option without one is not ranked."""
    ranks: dict[int, list[str]] = {}
    for name, cell in given.items():
        if cell and not re.fullmatch(r"0*[1-9]\d{0,3}", cell, re.ASCII):
            raise RequestError(f"{name} has the rank {cell[:40]!r}, expected 1, 2, 3 ...", param="ballots")
        if cell:
            ranks.setdefault(int(cell), []).append(name)
    return [ranks[rank] for rank in sorted(ranks)]


def _bounded(papers: Iterator[Paper]) -> list[Paper]:
    found = list(islice(papers, MAX_BALLOTS + 1))
    if len(found) > MAX_BALLOTS:
        text = f"there are more than {MAX_BALLOTS:,} ballots; put equal ones together: 3: A > B"
        raise RequestError(text, param="ballots")
    return found
