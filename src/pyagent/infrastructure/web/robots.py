"""Whether a site lets programs read a page: robots.txt as RFC 9309 has it. Pure; every expression is bounded.

Of the groups that name a program those with its name count, else those of `*`. The longest rule that fits a path
decides; where two are as long, the one that allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

import msgspec

MAX_BYTES = 500 * 1024
"""RFC 9309, 2.5: what a crawler reads of the file at least."""
_MAX_RULES = 10_000


class Rule(msgspec.Struct, frozen=True):
    """What paths that fit a pattern are: `*` stands for anything, `$` at the end for the end."""

    pattern: str
    is_allowed: bool


class Robots(msgspec.Struct, frozen=True):
    """The rules of a site for one program."""

    rules: Sequence[Rule] = ()

    def allows(self, url: str) -> bool:
        """Whether the page may be read."""
        parts = urlsplit(url)
        path = _plain(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}")
        fitting = [rule for rule in self.rules if fits(rule.pattern, path)]
        return max(fitting, key=lambda rule: (len(rule.pattern), rule.is_allowed)).is_allowed if fitting else True


NO_PAGE = Robots((Rule("/", is_allowed=False),))
"""Of a site that does not answer (RFC 9309, 2.3.1.4)."""


def read_robots(text: str, program: str) -> Robots:
    """Return what a robots.txt says to a program. What it says to others is not kept, however many it names."""
    own, name_to_rules = program.lower(), dict[str, list[Rule]]()
    names: set[str] = set()
    is_open, num_rules = False, 0
    for line in text.removeprefix("\ufeff").splitlines():
        key, colon, value = line.partition("#")[0].partition(":")
        key, value = key.strip().lower(), value.strip()
        if not colon:
            continue
        if key == "user-agent":
            names = names if is_open else set()
            is_open = True
            if (name := value.lower()) in {own, "*"}:
                names.add(name)
                name_to_rules.setdefault(name, [])
        elif key in {"allow", "disallow"}:
            is_open = False
            if value and names and num_rules < _MAX_RULES:
                num_rules += 1
                for name in names:
                    name_to_rules[name].append(Rule(_plain(value), key == "allow"))
    return Robots(tuple(name_to_rules.get(own, name_to_rules.get("*", []))))


def fits(pattern: str, path: str) -> bool:
    """Whether a path begins as a pattern says, in time that grows with their lengths' product at most."""
    has_end = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if not others:
        return path == first if has_end else True
    place = len(first)
    *middle, last = others
    for piece in middle:
        found = path.find(piece, place)
        if found < 0:
            return False
        place = found + len(piece)
    return (path.endswith(last) and len(path) - len(last) >= place) if has_end else path.find(last, place) >= 0


def _plain(path: str) -> str:
    """Return a path with its letters written in one way: `%7E` is `~`, and what has to be encoded is."""
    return quote(unquote(path), safe="/%*$?&=:@!~+,;'()[]#-._")
