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


def arguments_of(case: Case, reply: Reply) -> list[tuple[str, dict[str, Any]]] | None:
    """The calls with their arguments; None unless each names a tool and follows its schema."""
    schemas, found = case.schemas(), list[tuple[str, dict[str, Any]]]()
    for name, written in reply.calls:
        try:
            arguments = json.loads(written)
            jsonschema.validate(arguments, schemas[name], jsonschema.Draft202012Validator)
        except (ValueError, KeyError, jsonschema.ValidationError):
            return None
        found.append((name, arguments))
    return found


def interval(num_right: int, num: int) -> str:
    """A share in percent with its 95 % interval, by Wilson's formula."""
    if not num:
        return ""
    share, square = num_right / num, _SURE**2
    middle = (share + square / (2 * num)) / (1 + square / num)
    half = _SURE / (1 + square / num) * math.sqrt(share * (1 - share) / num + square / (4 * num**2))
    return f"{100 * share:.1f} % [{100 * max(0.0, middle - half):.1f}-{100 * min(1.0, middle + half):.1f}]"


def _row(board: Leaderboard, engine: str, choice: str, cases: Sequence[Case], asked: Asked) -> list[str]:
    judged = [(case, reply, arguments_of(case, reply)) for case, reply in zip(cases, asked.replies, strict=True)]
    ended = [one for one in judged if one[1].calls and not one[1].is_cut]
    num_valid = sum(calls is not None for _, _, calls in ended)
    wanted = [one for one in judged if one[0].answers]
    right = {
        case.id: not reply.error and calls is not None and board.is_right(case, calls) for case, reply, calls in judged
    }
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
        interval(sum(right[case.id] for case, _, _ in wanted), len(wanted)),
        f"{asked.seconds / len(cases):.2f}",
    ]


def print_table(board: Leaderboard, rows: Sequence[tuple[str, str, list[Case], Asked]]) -> None:
    """One row for each engine and `tool_choice`."""
    names = [category.removesuffix("_python").replace("_", " ") for category in CATEGORIES]
    head = ["engine", "`tool_choice`", "answers with calls: all valid", "cut by `max_tokens`", "errors", *names]
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
