"""Reads a question as people write it into an action: `derivative of x^2 sin(x)`, `17*23 + sqrt(2)`, `what is 2+2?`.

Plain patterns; what they catch must then be an expression of `grammar`, so that a sentence about something else is
refused rather than misread.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math import actions as act
from pyagent.logic.agents.math.grammar import FUNCTIONS, parse
from pyagent.logic.agents.math.numerals import in_digits

_OPENING = re.compile(
    r"^(?:please|can you|could you|tell me|what is|what's|what are|whats|what does|how much (?:is|are)"
    r"|calculate|compute|evaluate|find|give me|work out|the(?: value of)?|the result of)\b[\s:,]*",
    re.IGNORECASE,
)
_OPERATORS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), sign)
    for pattern, sign in (
        (r"\bmultiplied by\b|\btimes\b|(?<=\d)\s+[x×]\s+(?=\d)", "*"),
        (r"\bdivided by\b|\bover\b", "/"),
        (r"\bplus\b", "+"),
        (r"\bminus\b|\bnegative\b", "-"),
        (r"\b(?:raised )?to the power(?: of)?\b", "^"),
        (r"\b(?:raised )?to the (\d+)(?:st|nd|rd|th)(?: power)?\b", r"^\1"),
        (r"\bsquared\b", "^2"),
        (r"\bcubed\b", "^3"),
        (r"\bmodulo\b|\bmod\b", " mod "),
        (r"\bchoose\b", " choose "),
        (r"\bequals?\b", "="),
        (r"\b(?:the )?square root of\b", " sqrt "),
        (r"\b(?:the )?cube root of\b", " cbrt "),
        (r"\b(?:the )?double factorial of\b", " factorial2 "),
        (r"\b(?:the )?factorial of\b", " factorial "),
        (r"(?<=[\d)])\s+factorial\b", "!"),
        (r"(?<=\d)\s*degrees?\b", "°"),
        (r"\blog(?:arithm)? base (\S+) of (\S+)", r"log(\2, \1)"),
        (r"\b(?:twice|double)\b", " 2 *"),
        (r"\b(?:triple|thrice)\b", " 3 *"),
        (r"\bper ?cent\b", "%"),
        (r"(\d+(?:\.\d+)?)\s*%\s*of\b", r"(\1/100) *"),
        (r"(?<=\d)\s+(?=%\s*(?:$|[-+*/)=]))", ""),
    )
)
_LABEL = re.compile(
    r"\d{4}([-/.])\d\d?\1\d\d?|\d\d?([-/.])\d\d?\2\d{4}|(?:\d{1,3}-)?\d{3}-\d{3}-\d{4}|97[89]-\d+-\d+-\d+-\d"
)
"""Dates, telephone numbers, ISBNs: no subtractions."""
_MAX_CHARACTERS = 10_000
_MAX_QUESTION_CHARACTERS = 500
_ORDERS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "2nd": 2, "3rd": 3, "4th": 4}
_BY = r"(?:\s+(?:with respect to|wrt|by|for|in)\s+(?P<variable>[A-Za-z]\w*))?"
_MATRIX_WORDS = {"det": "determinant", "inv": "inverse"}

_Maker = Callable[[re.Match[str]], act.Action]


def _split(text: str) -> list[str]:
    """Equations with `;`, `and` or a comma outside brackets between them."""
    parts, depth = [""], 0
    for piece in re.split(r"(\band\b|[;,()\[\]{}])", text):
        depth += (piece in "([" and piece != "") - (piece in ")]" and piece != "")
        if piece in {";", "and"} or (piece == "," and depth == 0):
            parts.append("")
        elif piece not in {"{", "}"}:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def _solve(match: re.Match[str]) -> act.Action:
    variables = match.groupdict().get("variables")
    return act.Solve(equations=_split(match["equations"]), variables=_split(variables) if variables else [])


def _differentiate(match: re.Match[str]) -> act.Action:
    order = _ORDERS.get((match.groupdict().get("order") or "first").lower(), 1)
    return act.Differentiate(expression=match["expression"], variable=match["variable"], order=order)


def _leibniz(match: re.Match[str]) -> act.Action:
    order = int(match["order"] or 1)
    return act.Differentiate(expression=match["expression"], variable=match["variable"], order=order)


def _integrate(match: re.Match[str]) -> act.Action:
    expression, variable = match["expression"], match["variable"]
    if ending := re.fullmatch(r"(.+?)\s*d([a-z])", expression):
        expression, variable = ending[1], variable or ending[2]
    return act.Integrate(expression=expression, variable=variable, lower=match["lower"], upper=match["upper"])


def _limit(match: re.Match[str]) -> act.Action:
    side = (match["side"] or "both").lower()
    return act.Limit(
        expression=match["expression"],
        variable=match["variable"],
        point=match["point"],
        side="left" if side == "left" else "right" if side == "right" else "both",
    )


def _series(match: re.Match[str]) -> act.Action:
    return act.Series(
        expression=match["expression"],
        variable=match["variable"],
        point=match["point"] or "0",
        order=int(match["order"] or 6),
    )


def _matrix(match: re.Match[str]) -> act.Action:
    word = match["operation"].lower()
    return act.Matrix(expression=match["expression"], operation=_MATRIX_WORDS.get(word, word))  # type: ignore[arg-type]


def _only(kind: type[act.Simplify | act.Expand | act.Factor]) -> _Maker:
    return lambda match: kind(expression=match["expression"])


def _prime(match: re.Match[str]) -> act.Action:
    return act.Evaluate(expression=f"isprime({match['expression']})")


def _sum(match: re.Match[str]) -> act.Action:
    parts = match["body"], match["variable"], match["low"], match["high"]
    return act.Evaluate(expression=f"sum({', '.join(parts)})")


_SIGNS = {"sum": "+", "product": "*", "difference": "-", "quotient": "/"}
_FOLDED = {
    "gcd": "gcd",
    "greatest common divisor": "gcd",
    "lcm": "lcm",
    "least common multiple": "lcm",
    "maximum": "max",
    "largest": "max",
    "minimum": "min",
    "smallest": "min",
}


def _of_several(match: re.Match[str]) -> act.Action:
    """`sum of 2 and 3`, `average of 3, 5 and 10`, `gcd of 12 and 18`."""
    word, parts = match["operation"].lower(), _split(match["parts"])
    if len(parts) < 2 or (word in {"difference", "quotient"} and len(parts) > 2):
        raise RequestError(f"{word} of which numbers? write {word} of 12 and 18", param="text")
    if word in _FOLDED:
        return act.Evaluate(expression=f"{_FOLDED[word]}({', '.join(parts)})")
    parts = [*map(_operand, parts[:-1]), _last_operand(parts[-1])]
    if word in {"average", "mean"}:
        return act.Evaluate(expression=f"({' + '.join(parts)}) / {len(parts)}")
    return act.Evaluate(expression=f" {_SIGNS[word]} ".join(parts))


def _in_order(form: str) -> _Maker:
    return lambda match: act.Evaluate(expression=form.format(_operand(match["one"]), _last_operand(match["other"])))


def _changed(sign: str) -> _Maker:
    return lambda match: act.Evaluate(
        expression=f"{_operand(match['one'] or match['what'])} * (1 {sign} {match['other']}/100)"
    )


def _operand(text: str) -> str:
    return text if re.fullmatch(r"\s*[\w.]+\s*", text) else f"({text})"


def _last_operand(text: str) -> str:
    """Return the operand; raises `RequestError` when the operation may end within it, as in `divide 10 by 2 plus 3`."""
    is_open = parse(text).kind in {"+", "*", "%", "mod"} or re.search(
        r"\s\^", text
    )  # `3 ^2` is what `3 squared` became
    if re.fullmatch(r"\s*\d+/\d+\s*", text):
        return text
    if is_open and not re.fullmatch(r"\(.*\)", text.strip()):
        raise RequestError(f"{text!r} can be read in two ways here; write it with signs and brackets", param="text")
    return _operand(text)


_POINT = r"(?P<variable>[A-Za-z]\w*)\s*(?:->|→|goes to|tends to|approaches|to)\s*(?P<point>\S+)"
_SIDE = r"(?:\s+from (?:the )?(?P<side>left|right))?"
_PATTERNS: tuple[tuple[re.Pattern[str], _Maker], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), maker)
    for pattern, maker in (
        (r"(?:the )?(?:(?P<order>\w+) )?derivative of (?P<expression>.+?)" + _BY, _differentiate),
        (r"(?:differentiate|derive) (?P<expression>.+?)" + _BY, _differentiate),
        (r"d(?:\^?(?P<order>\d))?/d(?P<variable>[a-z])(?:\^?\d)?\s*(?P<expression>.+)", _leibniz),
        (
            r"(?:integrate|(?:the )?integral of) (?P<expression>.+?)"
            + _BY
            + r"(?:\s+(?:from|between) (?P<lower>\S+) (?:to|and) (?P<upper>\S+))?",
            _integrate,
        ),
        (r"(?:the )?lim(?:it)?(?: of)? (?P<expression>.+?) (?:as|when|for) " + _POINT + _SIDE, _limit),
        (r"lim(?:it)?\s+" + _POINT + _SIDE + r"\s+(?:of )?(?P<expression>.+)", _limit),
        (
            r"(?:the )?(?:taylor |maclaurin )?series (?:of|for) (?P<expression>.+?)"
            + _BY
            + r"(?: (?:around|about|at) (?:[a-z]\s*=\s*)?(?P<point>\S+))?(?: (?:to|up to) order (?P<order>\d+))?",
            _series,
        ),
        (r"solve (?P<equations>.+?)(?: for (?P<variables>[A-Za-z]\w*(?:(?:\s*,\s*|\s+and\s+)[A-Za-z]\w*)*))?", _solve),
        (r"(?:the )?(?:roots|zeros) of (?P<equations>.+)", _solve),
        (
            r"(?:the )?(?P<operation>det|determinant|inverse|inv|invert|eigenvalues|rank|transpose|trace)"
            r"(?: of)?(?: the)?(?: matrix)? ?\(?(?P<expression>\[.+\])\)?",
            _matrix,
        ),
        (r"simplify (?P<expression>.+)", _only(act.Simplify)),
        (r"expand (?P<expression>.+)", _only(act.Expand)),
        (
            r"(?:factor|factori[sz]e|(?:the )?(?:prime )?factors of) (?P<expression>.+)",
            _only(act.Factor),
        ),
        (r"is (?P<expression>\d+) (?:a )?prime(?: number)?", _prime),
        (
            r"(?:the )?sum of (?P<body>.+?) (?:for|from) (?P<variable>[a-z])\s*(?:=|from)\s*"
            r"(?P<low>\S+) to (?P<high>\S+)",
            _sum,
        ),
        (
            rf"(?:the )?(?P<operation>{'|'.join([*_SIGNS, *_FOLDED, 'average', 'mean'])}) (?:of|between) (?P<parts>.+)",
            _of_several,
        ),
        (r"add (?P<one>.+?) (?:and|to) (?P<other>.+)", _in_order("{} + {}")),
        (r"(?P<one>.+?) added to (?P<other>.+)", _in_order("{} + {}")),
        (r"subtract (?P<one>.+?) from (?P<other>.+)", _in_order("{1} - {0}")),
        (r"(?P<one>[^-+*/]+?) (?:less|fewer) than (?P<other>.+)", _in_order("{1} - {0}")),
        (r"(?P<one>[^-+*/]+?) more than (?P<other>.+)", _in_order("{1} + {0}")),
        (
            r"(?:the )?remainder (?:of|when|if) (?P<one>.+?)(?: is)? ?(?:divided by|/) ?(?P<other>.+?)",
            _in_order("{} mod {}"),
        ),
        (r"(?P<other>[\d.]+)\s*% off (?:of )?(?P<one>(?P<what>.+))", _changed("-")),
        (r"(?P<one>.+?) subtracted from (?P<other>.+)", _in_order("{1} - {0}")),
        (r"multiply (?P<one>.+?) (?:by|and|with) (?P<other>.+)", _in_order("{} * {}")),
        (r"divide (?P<one>.+?) by (?P<other>.+)", _in_order("{} / {}")),
        (r"(?:increase (?P<one>.+?)|(?P<what>.+?) increased) by (?P<other>[\d.]+)\s*%", _changed("+")),
        (
            r"(?:(?:decrease|reduce) (?P<one>.+?)|(?P<what>.+?) (?:decreased|reduced)) by (?P<other>[\d.]+)\s*%",
            _changed("-"),
        ),
    )
)


def read_question(text: str) -> act.Action:
    """Return the action a question asks for; raises `RequestError` saying what cannot be read."""
    if len(text) > _MAX_CHARACTERS:
        raise RequestError(f"the question has {len(text):,} characters; the most is {_MAX_CHARACTERS:,}", param="text")
    text = text.strip().rstrip("?. ").removesuffix("=").strip()
    while (shorter := _OPENING.sub("", text, count=1)) != text:
        text = shorter
    if _LABEL.fullmatch(text):
        raise RequestError(f"{text} looks like a date or a telephone number; write sums with spaces", param="text")
    text = in_digits(text)
    for pattern, sign in _OPERATORS:
        text = pattern.sub(sign, text)
    for pattern, maker in _PATTERNS:
        if match := pattern.fullmatch(text):
            action = maker(match)
            action.check()
            return action
    action = act.Evaluate(expression=" ".join(text.split()))
    action.check()
    return action


def reason_to_take(text: str) -> str | None:
    """Why a text is plainly mathematics; None when it is not, or only might be."""
    if len(text) > _MAX_QUESTION_CHARACTERS or _LABEL.fullmatch(text.strip()):
        return None
    try:
        action = read_question(text)
    except RequestError:
        return "it is written as mathematics" if is_notation(text) else None
    if isinstance(action, act.Evaluate):
        kind = parse(action.expression).kind
        return None if kind in {"symbol", "number", "constant"} else f"it is an expression: {action.expression[:60]}"
    return f"it asks to {type(action).__name__.lower()}"


def is_notation(text: str) -> bool:
    """Whether a text that cannot be read is a formula all the same: numbers and signs, and no other words."""
    if len(text) > _MAX_CHARACTERS or _LABEL.fullmatch(text.strip()):
        return False
    while (shorter := _OPENING.sub("", text, count=1)) != text:
        text = shorter
    words = re.findall(r"[^\W\d_]+", text.lower())
    has_operation = re.search(r"[-+*/^%!=√×÷]|\b(?:choose|mod)\b", text)
    return bool(has_operation and re.search(r"\d", text)) and all(
        word in FUNCTIONS or word in {"pi", "choose", "mod", "oo"} for word in words if len(word) > 1
    )
