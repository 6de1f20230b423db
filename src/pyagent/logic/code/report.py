"""Reports of an audit: Markdown for people, SARIF 2.1.0 for code hosts and editors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec

from pyagent import __version__
from pyagent.logic.code.health import CodeHealth, FileHealth, Trend, count_of, lowest

MAX_COMPLEXITY = 10
"""Above it a function is told as too complex: McCabe's own bound, and the default of C901."""
MIN_MAINTAINABILITY = 20.0
"""Below it a file is told as hard to maintain: radon's rank B and worse."""
_MAX_RESULTS = 5_000
"""Results of one run that GitHub shows; more are left out, the mildest first."""
_RULES = {
    "unreadable": ("error", "A file, or a part of it, cannot be read as its language."),
    "complexity": ("warning", f"A function's cyclomatic complexity is above {MAX_COMPLEXITY}."),
    "maintainability": ("warning", f"A file's maintainability index is below {MIN_MAINTAINABILITY:.0f} of 100."),
    "duplicate": ("note", "A block of code stands in more than one place."),
    "unnamed": ("note", "A function's name stands nowhere but in its definition: perhaps it is dead code."),
}


def markdown(health: CodeHealth) -> str:
    """Return a report in Markdown, `health.top` rows of each table."""
    unread = [file for file in health.files if file.error]
    known = lowest(health.files)
    lines = _summary(health, known, len(unread))
    lines += _table(
        "Most complex functions",
        ("complexity", "function", "where"),
        [
            (str(row.complexity), _code(row.name), _code(f"{_relative(row.path)}:{row.line}"))
            for row in health.most_complex
        ],
    )
    lines += _table(
        "Least maintainable files",
        ("index", "file"),
        [(f"{file.maintainability:.0f}", _code(_relative(file.path))) for file in known[: health.top]],
    )
    lines += _table(
        "Longest copies",
        ("lines", "places"),
        [
            (str(one.lines), ", ".join(_code(f"{_relative(place.path)}:{place.first}") for place in one.places[:8]))
            for one in health.duplicates[: health.top]
        ],
    )
    lines += _table(
        "Named nowhere else, perhaps dead",
        ("function", "where"),
        [(_code(one.name), _code(f"{_relative(one.path)}:{one.line}")) for one in health.unnamed[: health.top]],
    )
    lines += _trend(health.trend, health.top) if health.trend else []
    lines += _table(
        "Unreadable", ("file", "why"), [(_code(_relative(file.path)), _cell(file.error or "")) for file in unread[:20]]
    )
    return "\n".join(lines) + "\n"


def _summary(health: CodeHealth, known: Sequence[FileHealth], num_unread: int) -> list[str]:
    functions = sum(len(file.functions) for file in health.files)
    mean = sum(file.maintainability or 0.0 for file in known) / len(known) if known else 0.0
    rows = {
        "files": f"{len(health.files):,}",
        "functions": f"{functions:,}",
        "complexity of all functions": f"{sum(file.complexity for file in health.files):,}",
        "maintainability, mean": f"{mean:.0f} of 100",
        "copied blocks": f"{len(health.duplicates):,}",
        "functions named nowhere else": f"{len(health.unnamed):,}",
        "unreadable files": f"{num_unread:,}",
    }
    return ["# Code health", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _trend(trend: Trend, top: int) -> list[str]:
    rows = [
        (
            one.date,
            _code(one.commit[:10]),
            f"{one.files:,}",
            f"{one.functions:,}",
            f"{one.complexity:,}",
            f"{one.complex_functions:,}",
            "" if one.maintainability is None else f"{one.maintainability:.1f}",
        )
        for one in trend.snapshots
    ]
    hotspots = [(f"{one.commits:,}", f"{one.complexity:,}", _code(_relative(one.path))) for one in trend.hotspots[:top]]
    heads = ("date", "commit", "files", "functions", "complexity", "above 10", "maintainability")
    return [
        *_table(f"Trend over {count_of(trend.commits, 'commit')}", heads, rows),
        *_table("Most changed and most complex", ("commits", "complexity", "file"), hotspots),
    ]


def _table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    table = [f"| {' | '.join(cells)} |" for cells in (heads, ("---",) * len(heads), *rows)]
    return ["", f"## {title}", "", *table]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _code(text: str) -> str:
    return f"`{' '.join(text.replace('`', '').replace('|', chr(92) + '|').split())}`"


def _relative(path: str) -> str:
    """Return a path below the working folder as one from there; another as it is."""
    full = Path(path)
    return full.relative_to(Path.cwd()).as_posix() if full.is_relative_to(Path.cwd()) else full.as_posix()


def sarif(health: CodeHealth) -> str:
    """Return a report in SARIF 2.1.0, its paths from the working folder; the gravest results first."""
    results = [result for _, result in zip(range(_MAX_RESULTS), _results(health), strict=False)]
    rules = [
        {"id": rule, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for rule, (level, text) in _RULES.items()
    ]
    driver = {"name": "pyagent code-health", "semanticVersion": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode()


def _results(health: CodeHealth) -> Iterator[dict[str, object]]:
    for file in health.files:
        if file.error:
            yield _result("unreadable", f"The file cannot be read: {file.error}", [(file.path, 1, 1)])
    for file in health.files:
        for one in file.functions:
            if one.complexity > MAX_COMPLEXITY:
                text = f"{one.name} has a cyclomatic complexity of {one.complexity}; {MAX_COMPLEXITY} is the most."
                yield _result("complexity", text, [(file.path, one.line, one.line)], one.name)
    for file in lowest(health.files):
        if (file.maintainability or 0.0) < MIN_MAINTAINABILITY:
            text = f"The file's maintainability index is {file.maintainability:.0f} of 100."
            yield _result("maintainability", text, [(file.path, 1, 1)])
    for copy in health.duplicates:
        places = [(place.path, place.first, place.last) for place in copy.places]
        others = ", ".join(f"{_relative(place.path)}:{place.first}" for place in copy.places[1:4])
        yield _result("duplicate", f"{copy.lines} lines stand also at {others}.", places)
    for one in health.unnamed:
        text = f"{one.name} is named nowhere else: perhaps it is dead code."
        yield _result("unnamed", text, [(one.path, one.line, one.line)], one.name)


def _result(rule: str, text: str, places: list[tuple[str, int, int]], name: str = "") -> dict[str, object]:
    """Return a result at its first place; the others are related ones. Its fingerprint stays when lines move."""
    locations = [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": quote(_relative(path))},
                "region": {"startLine": max(first, 1), "endLine": max(last, 1)},
            }
        }
        for path, first, last in places
    ]
    related = [{"id": number, **location} for number, location in enumerate(locations[1:], 1)]
    key = sha256("\0".join((rule, _relative(places[0][0]), name, str(len(places)))).encode()).hexdigest()[:32]
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": _RULES[rule][0],
        "message": {"text": text},
        "locations": locations[:1],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"pyagent/v1": key},
    }
