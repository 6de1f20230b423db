"""Requests of every kind for one batch, and all that their clients hear."""

from __future__ import annotations

from typing import Any

import msgspec
from support.native import chat, mixed_requests

from pyagent.core.backends import Answer
from pyagent.core.messages import ChatRequest, JsonSchemaFormat, ResponseFormat

SCHEMA = {
    "type": "object",
    "properties": {"user": {"enum": ["the", "on"]}, "at": {"type": "integer"}},
    "required": ["user", "at"],
    "additionalProperties": False,
}


def requests_of_all_kinds() -> list[ChatRequest]:
    """Those of other tests, and log probabilities, several answers, fewest tokens, forms, beams, DRY, Mirostat."""
    form = ResponseFormat("json_schema", JsonSchemaFormat(schema=SCHEMA))
    kinds: list[dict[str, object]] = [
        {"top_logprobs": 5, "temperature": 0},
        {"top_logprobs": 3, "return_entropy": True, "seed": 2},
        {"min_tokens": 30, "seed": 4, "temperature": 2.0, "ignore_eos": False},
        {"dry_multiplier": 0.8, "seed": 5},
        {"no_repeat_ngram_size": 3, "temperature": 0},
        {"mirostat": 2, "seed": 6},
        {"repeat_last_n": 20, "repetition_penalty": 1.3, "seed": 8, "xtc_probability": 0.5},
        {"stop": ("the", "er"), "include_stop_str_in_output": True, "seed": 9},
    ]
    texts = ("the user is at the system", "on and on and on and on and on")
    asked = [chat(text, **{"max_tokens": 60, "ignore_eos": True} | kind) for kind in kinds for text in texts]
    asked += [msgspec.structs.replace(one, n=2) for one in asked[2:6]]
    asked += [msgspec.structs.replace(chat(text, max_tokens=80, seed=7), response_format=form) for text in texts]
    return asked + mixed_requests(24)


def told(answer: Answer) -> tuple[Any, ...]:
    """All that a client hears of an answer, but for when."""
    parts = sorted(answer.deltas, key=lambda delta: delta.index)
    return (
        [
            (index, "".join(one.content for one in parts if one.index == index))
            for index in {one.index for one in parts}
        ],
        [
            (one.index, entry.token, entry.logprob, entry.top_logprobs, entry.entropy)
            for one in parts
            for entry in one.logprobs
        ],
        [(one.index, one.finish_reason) for one in parts if one.finish_reason],
        [one.prompt_logprobs for one in parts if one.prompt_logprobs],
        answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens),
    )
