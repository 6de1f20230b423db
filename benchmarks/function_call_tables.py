"""Judges the replies of a run of function calls, and prints its tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import jsonschema
from bfcl_cases import CATEGORIES, Case, Leaderboard
from function_call_client import Asked, Reply

_SURE = 1.96
"""Standard deviations on either side of a 95 % interval."""


def arguments_of(case: Case, name: str, written: str) -> dict[str, Any] | None:
    """The arguments of a call; None unless it names a tool and follows its schema."""
    try:
        arguments = json.loads(written)
        jsonschema.validate(arguments, case.schemas()[name], jsonschema.Draft202012Validator)
    except (ValueError, KeyError, jsonschema.ValidationError):
        return None
    return arguments


def ended_calls(reply: Reply) -> list[tuple[str, str]]:
    """The calls but for one that `max_tokens` cut."""
    if not reply.is_cut or not reply.calls:
        return reply.calls
    try:
        json.loads(reply.calls[-1][1])
    except ValueError:
        return reply.calls[:-1]
    return reply.calls


def is_right(board: Leaderboard, case: Case, reply: Reply) -> bool:
    """Whether an answer has the calls that its case asks for."""
    if reply.error:
        return False
    read = [(name, arguments_of(case, name, written)) for name, written in reply.calls]
    calls = [(name, arguments) for name, arguments in read if arguments is not None]
    return len(calls) == len(read) and board.is_right(case, calls)


def interval(num_right: int, num: int) -> str:
    """A share in percent with its 95 % interval, by Wilson's formula."""
    if not num:
        return ""
    share, square = num_right / num, _SURE**2
    middle = (share + square / (2 * num)) / (1 + square / num)
    half = _SURE / (1 + square / num) * math.sqrt(share * (1 - share) / num + square / (4 * num**2))
    return f"{100 * share:.1f} % [{100 * max(0.0, middle - half):.1f}-{100 * min(1.0, middle + half):.1f}]"


def _row(board: Leaderboard, engine: str, choice: str, cases: Sequence[Case], asked: Asked) -> list[str]:
    judged = list(zip(cases, asked.replies, strict=True))
    ended = [(case, call) for case, reply in judged for call in ended_calls(reply)]
    num_valid = sum(arguments_of(case, *call) is not None for case, call in ended)
    wanted = [case for case in cases if case.answers]
    right = {case.id: is_right(board, case, reply) for case, reply in judged}
    shares = [
        f"{sum(right[case.id] for case in cases if case.category == category)}"
        f"/{sum(case.category == category for case in cases)}"
        for category in CATEGORIES
    ]
    if choice == "required":
        shares[-1] = ""  # it asks for a call where none is right
    return [
        engine,
        choice,
        f"{num_valid} of {len(ended)}",
        str(sum(reply.is_cut for reply in asked.replies)),
        str(sum(bool(reply.error) for reply in asked.replies)),
        *shares,
        interval(sum(right[case.id] for case in wanted), len(wanted)),
        f"{asked.seconds / len(cases):.2f}",
    ]


def print_table(board: Leaderboard, rows: Sequence[tuple[str, str, list[Case], Asked]]) -> None:
    """One row for each engine and `tool_choice`."""
    names = [category.removesuffix("_python").replace("_", " ") for category in CATEGORIES]
    head = ["engine", "`tool_choice`", "calls that validate", "cut by `max_tokens`", "errors", *names]
    head += ["right, of those that want calls", "s a case"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(_row(board, *row))} |", flush=True)


def print_checks(required: Asked, streamed: Asked, single: Asked, second: Asked) -> None:
    """What else must hold of the embedded engine's replies."""
    num_equal = sum(one == other for one, other in zip(required.replies, streamed.replies, strict=True))
    num_one = sum(len(reply.calls) == 1 for reply in single.replies)
    num_several = sum(len(reply.calls) > 1 for reply in required.replies)
    num_fine = sum(not reply.error for reply in second.replies)
    print(f"\n- streamed pieces, joined, equal the whole answer: {num_equal} of {len(required.replies)}")
    print(f"- one call with `parallel_tool_calls: false`: {num_one} of {len(single.replies)}")
    print(f"- several calls without it: {num_several} of {len(required.replies)}")
    print(
        f"- second turns with results of the calls, without an error: {num_fine} of {len(second.replies)}\n", flush=True
    )
