"""What the math agent reads: numbers and operators however written, and what it refuses, with the reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.math_answers import exact_answer

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math.actions import Evaluate
from pyagent.logic.agents.math.arithmetic import solved_at_once
from pyagent.logic.agents.math.compute import compute
from pyagent.logic.agents.math.grammar import parse
from pyagent.logic.agents.math.numerals import in_digits
from pyagent.logic.agents.math.phrases import read_question
from pyagent.logic.agents.math.sandbox import Sandbox

_BELOW_TWENTY = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def _in_words(number: int) -> str:
    """A number below a thousand million, as it is said."""
    for size, name in ((10**6, "million"), (10**3, "thousand"), (100, "hundred")):
        if number >= size:
            head, rest = divmod(number, size)
            joint = " and " if size == 100 else " "
            return f"{_in_words(head)} {name}" + (f"{joint}{_in_words(rest)}" if rest else "")
    if number < 20:
        return _BELOW_TWENTY.split()[number]
    tens, ones = divmod(number, 10)
    return _TENS.split()[tens - 2] + (f"-{_BELOW_TWENTY.split()[ones]}" if ones else "")


_WRITTEN: dict[str, Callable[[int], str]] = {
    "plain": str,
    "commas": lambda number: f"{number:,}",
    "spaces": lambda number: f"{number:,}".replace(",", " "),
    "thin spaces": lambda number: f"{number:,}".replace(",", "\u202f"),
    "underscores": lambda number: f"{number:_}",
    "words": _in_words,
    "millions": lambda number: f"{number} million",
}
_SIGNS = {
    "+": ["+", "plus"],
    "-": ["-", "minus", "−"],
    "*": ["*", "times", "×", "multiplied by"],
    "/": ["/", "divided by"],
}
_TERM = st.tuples(st.integers(1, 10**9 - 1), st.sampled_from(sorted(_WRITTEN)))
_NEXT = st.tuples(st.sampled_from(sorted(_SIGNS)), st.integers(0, 3), _TERM)


@given(_TERM, st.lists(_NEXT, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_numbers_and_operators_however_written_equal_fractions(
    first: tuple[int, str], rest: list[tuple[str, int, tuple[int, str]]]
) -> None:
    """Sums with separators, words and scales are computed as Python's exact fractions compute them."""
    text, terms = _WRITTEN[first[1]](first[0]), [_value(first)]
    for sign, choice, term in rest:
        text += f" {_SIGNS[sign][choice % len(_SIGNS[sign])]} {_WRITTEN[term[1]](term[0])}"
        if sign in "+-":
            terms.append(_value(term) if sign == "+" else -_value(term))
        else:
            terms[-1] = terms[-1] * _value(term) if sign == "*" else terms[-1] / _value(term)
    assert Fraction(compute(read_question(text)).exact) == sum(terms)


def _value(term: tuple[int, str]) -> Fraction:
    return Fraction(term[0]) * (10**6 if term[1] == "millions" else 1)


@given(st.integers(0, 10**9 - 1))
def test_number_words_are_read_as_they_are_said(number: int) -> None:
    """Each number below a thousand million is read back from its words."""
    assert in_digits(_in_words(number)) == str(number)


_WHOLE = st.integers(-99, 99)


@given(st.lists(st.tuples(st.sampled_from("+-*/"), _WHOLE), min_size=1, max_size=6), _WHOLE)
@settings(max_examples=60, deadline=None)
def test_arithmetic_equals_fractions(sandbox: Sandbox, rest: list[tuple[str, int]], first: int) -> None:
    """Chains of the four operations give what Python's exact fractions give."""
    text = f"({first})" + "".join(f" {sign} ({number})" for sign, number in rest)
    if any(sign == "/" and number == 0 for sign, number in rest):
        with pytest.raises(RequestError, match="division by zero"):
            exact_answer(sandbox, text)
        return
    terms = [Fraction(first)]
    for sign, number in rest:
        if sign in "+-":
            terms.append(Fraction(number if sign == "+" else -number))
        else:
            terms[-1] = terms[-1] * number if sign == "*" else terms[-1] / number
    assert Fraction(exact_answer(sandbox, text)) == sum(terms)


def _plain(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["+", "-", "*", "/", " ^ ", " - -"])
    return st.builds(lambda left, sign, right: f"({left}){sign}({right})", parts, signs, parts)


@given(
    st.recursive(st.sampled_from(["0", "1", "2", "3", "7", "12", "0.5", "2.", ".25", "-4", "10"]), _plain, max_leaves=6)
)
def test_plain_arithmetic_without_sympy_is_what_sympy_says(text: str) -> None:
    """What is answered at once is sympy's answer; what is left to sympy is past the bound, not whole, or undefined."""
    try:
        known = solved_at_once(Evaluate(expression=text))
        if known is not None:
            theirs = compute(Evaluate(expression=text))
            assert (known.exact, known.is_exact, known.note) == (theirs.exact, theirs.is_exact, theirs.note)
            assert float(known.approximate or 0) == pytest.approx(float(theirs.approximate or 0), rel=1e-5)
    except RequestError as error:
        assert "division by zero" not in str(error)  # noqa: PT017 - the grammar's own refusals


def test_what_is_large_is_not_computed_without_bounds() -> None:
    """Numbers that grow, undefined values, functions and unknowns are left to the worker."""
    for text in (
        "9^9^9",
        "2^2000",
        "1/0",
        "0^-1",
        "(1-1)^-2",
        "2^0.5",
        "sqrt(4)",
        "x+1",
        "pi",
        "1e9",
        "7 mod 3",
        "1=1",
    ):
        assert solved_at_once(Evaluate(expression=text)) is None


@given(st.text(max_size=60))
@settings(deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is typed is an expression or a `RequestError`, never another exception."""
    for read in (parse, read_question):
        with contextlib.suppress(RequestError):
            read(text)


@given(st.text(alphabet="0123456789.+-*/^%!()[],= xyesincolgdt", max_size=60))
@settings(deadline=None, max_examples=200)
def test_mathlike_text_is_read_or_refused(text: str) -> None:
    """So is text that looks like mathematics."""
    with contextlib.suppress(RequestError):
        read_question(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "x.__class__",
        "lambda: 1",
        "open('f')",
        "exec(1)",
        "hello world",
        "(2+3",
        "2+",
        "",
        "foo(3)",
        "sin()",
        "[[1,2],[3]]",
        "(" * 5000 + "1" + ")" * 5000,
        "-" * 20_000 + "1",
        "9" * 5000,
        "2e999999999",
        "sin " * 500 + "x",
        "2^" * 500 + "2",
    ],
)
def test_what_is_not_mathematics_is_refused(text: str) -> None:
    """Code, nonsense, and texts too long, deep or big are refused before anything is computed."""
    with pytest.raises(RequestError):
        read_question(text)


def test_unknown_function_names_the_nearest() -> None:
    """A misspelt function is refused with the one meant."""
    with pytest.raises(RequestError, match="did you mean 'sqrt'"):
        read_question("sqr(2)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9**9**9", "digits"),
        ("2^(10^8)", "digits"),
        ("factorial(10^9)", "factorials"),
        ("3!!!!", "factorials"),
        ("product(k, k, 1, 10^9)", "factors"),
        ("1/0", "zero"),
        ("7 % 0", "zero"),
        ("inverse of [[1,2],[2,4]]", "determinant is 0"),
        ("det [[1,2,3],[4,5,6]]", "square"),
        ("[[1,2],[3,4]] + 1", "fit"),
        ("integrate x^x", "closed form"),
        ("derivative of a*b", "which variable"),
        ("limit of 1/x as x -> 0", "does not exist"),
        ("limit of sin(x) as x -> oo", "to and fro"),
        ("0 * oo", "could be any value"),
        ("integrate floor(x)", "closed form"),
        ("2^-1 mod 4", "no inverse"),
        ("7/2 mod 3", "fractions"),
        ("17 + 5 mod 12", "two ways"),
        ("200 + 10%", "two ways"),
        ("10% + 5", "two ways"),
        ("divide 10 by 2 plus 3", "two ways"),
        ("max(1,000, 2)", "one number or several"),
        ("2026-11-22", "date"),
        ("1-800-555-1234", "telephone"),
        ("6/2(1+2)", "two ways"),
        ("sum of 5 and 3 squared", "two ways"),
        ("1.000.000 + 1", "operator"),
        ("12 34 + 1", "operator"),
        ("5 % of", "two ways|expected"),
    ],
)
def test_what_has_no_answer_says_why(sandbox: Sandbox, text: str, reason: str) -> None:
    """Sums too big to write down and questions without an answer are refused at once, with the reason."""
    started = time.monotonic()
    with pytest.raises(RequestError, match=reason):
        exact_answer(sandbox, text)
    assert time.monotonic() - started < 30
