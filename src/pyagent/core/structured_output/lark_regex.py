r"""A Lark grammar none of whose rules leads back to itself, as one regular expression. Pure.

For places where a grammar cannot stand: the input of a custom tool is a text within JSON, which a pattern can hold.
"""

from __future__ import annotations

import json
import re

from pyagent.core.structured_output.lark_parts import PARTS, rule_name

_MAX_DEPTH = 100
_IMPORT = re.compile(r"^[ \t]*%import[ \t]+common\.(\w+)(?:[ \t]*->[ \t]*(\w+))?[ \t]*$", re.MULTILINE)
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")
_BRACKETS = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\\[])*+\]|[()\[]", re.DOTALL)
"""Parentheses that group: no letters, and none in a class; a bracket alone is a class in a class, or not closed."""
_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")
_DECIMAL, _EXPONENT = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)", "[eE][+-]?[0-9]+"
_FLOAT = f"(?:[0-9]+{_EXPONENT}|{_DECIMAL}(?:{_EXPONENT})?)"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|[0-9]+)",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|[0-9]+)",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "NEWLINE": r"(?:\r?\n)+",
    "CR": r"\r",
    "LF": r"\n",
}
"""The terminals that Lark's own library of common ones has."""


def regex_of_lark(lark: str, max_chars: int) -> str:
    """Return the expression for exactly the texts of a grammar.

    Raises `ValueError` saying what of it no regular expression of so many characters has.
    """
    given = {alias or name: name for name, alias in _IMPORT.findall(lark)}
    unknown = [name for name in given.values() if name not in _COMMON]
    if unknown:
        raise ValueError(f"there is no common.{unknown[0][:40]}")
    bodies = _bodies(_IMPORT.sub("", lark))
    found = {name: _COMMON[common] for name, common in given.items()}
    return _Inlined(bodies, found, max_chars).expression("start", ())


_Bodies = dict[str, list[tuple[str, str]]]
"""Of each rule its pieces: (`name`, a rule's) or (`regex`, a part of the expression)."""


class _Inlined:
    """The expressions of rules, each with those of the rules that it names."""

    def __init__(self, bodies: _Bodies, found: dict[str, str], max_chars: int) -> None:
        self._bodies, self._found, self._max_chars = bodies, found, max_chars

    def expression(self, name: str, way: tuple[str, ...]) -> str:
        """Return a rule's expression; `way` are the rules that lead to it."""
        if name in self._found:
            return self._found[name]
        if name in way:
            raise ValueError(f"the rule {name[:40]!r} leads back to itself")
        if name not in self._bodies:
            raise ValueError(f"there is no rule {name[:40]!r}")
        if len(way) >= _MAX_DEPTH:
            raise ValueError(f"its rules lead more than {_MAX_DEPTH} deep into one another")
        parts, num_chars = list[str](), 0
        for kind, text in self._bodies[name]:
            parts.append(f"(?:{self.expression(text, (*way, name))})" if kind == "name" else text)
            num_chars += len(parts[-1])
            if num_chars > self._max_chars:
                raise ValueError(f"as one regular expression it has more than {self._max_chars} characters")
        self._found[name] = "".join(parts)
        return self._found[name]


def _bodies(lark: str) -> _Bodies:
    bodies, orphan, at, before = _Bodies(), list[tuple[str, str]](), 0, ""
    body = orphan
    for part in PARTS.finditer(lark):
        gap, at = lark[at : part.start()], part.end()
        marks, is_alias = _marks(gap)
        body += [("regex", marks)] if marks not in {"", ".."} else []
        if part["skip"] or is_alias:  # an alias is what Lark calls this way in its tree
            continue
        if part["head"]:
            body = bodies[_new_rule(part, bodies)] = []
        elif marks == "..":
            body[-1] = ("regex", _range(before, part["text"]))
        elif not gap and part["name"] and before.startswith(('"', "/")):
            body[-1] = ("regex", _flagged(body[-1][1], part["name"]))
        else:
            body.append(_piece(part))
        before = part[0]
    marks, _ = _marks(lark[at:])
    body += [("regex", marks)] if marks else []
    if orphan:
        raise ValueError("something stands before its first rule")
    return bodies


def _marks(gap: str) -> tuple[str, bool]:
    """Return the operators between two parts, and whether an alias follows."""
    marks = "".join(gap.split())
    found = marks.removesuffix("->")
    if found.strip("|*+?") not in {"", ".."} or (found.strip("|*+?") and found != ".."):
        raise ValueError(f"{marks[:20]!r} has no counterpart in a regular expression")
    return found, found != marks


def _new_rule(part: re.Match[str], bodies: _Bodies) -> str:
    name = rule_name(part)
    if "[" in part["head"]:
        raise ValueError(f"the options of the rule {name[:40]!r} are no part of a regular expression")
    if name in bodies:
        raise ValueError(f"there are two rules {name[:40]!r}")
    return name


def _piece(part: re.Match[str]) -> tuple[str, str]:
    if part["name"]:
        return "name", part["name"]
    if part["text"]:
        return "regex", f"(?:{_SPECIAL.sub(_escaped, _said(part['text']))})"
    if part["regex"]:
        return "regex", f"(?:{_checked(part['regex'])})"
    if part["repeat"]:
        least = part["least"] or part["from"] or "0"
        most = part["most"] if part["from"] is None else part["to"] or least
        return "regex", f"{{{least},{most}}}" if part["from"] or part["comma"] else f"{{{least}}}"
    brackets = {"(": "(?:", "[": "(?:", ")": ")", "]": ")?"}
    if part[0] in brackets:
        return "regex", brackets[part[0]]
    raise ValueError(f"{part[0][:20].strip()!r} has no counterpart in a regular expression")


def _checked(pattern: str) -> str:
    """Return a pattern; raises `ValueError` for one that would not stay within its group."""
    depth = 0
    for mark in _BRACKETS.findall(pattern):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0 or mark == "[":
            raise ValueError(f"the brackets of /{pattern[:40]}/ do not match")
    if depth or _SPACED.search(pattern):
        raise ValueError(f"/{pattern[:40]}/ is not closed, or has spaces that are none")
    return pattern


def _escaped(letter: re.Match[str]) -> str:
    return f"\\{letter[0]}"


def _said(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise ValueError(f"the text {text[:40]} cannot be read") from error


def _range(first: str, last: str | None) -> str:
    ends = [_said(one) for one in (first, last or "") if one.startswith('"')]
    if len(ends) != 2 or any(len(end) != 1 for end in ends):
        raise ValueError("a range needs one letter on either side")
    return f"[{'-'.join(_SPECIAL.sub(_escaped, end) for end in ends)}]"


def _flagged(expression: str, flags: str) -> str:
    if set(flags) - set("imsu"):
        raise ValueError(f"the flags {flags[:20]!r} are not supported")
    return f"(?{flags}:{expression})"
