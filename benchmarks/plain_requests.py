"""Requests for an engine without a tokenizer: tokens in, a letter for each token out."""

from __future__ import annotations

from collections.abc import Callable

from pyagent import _rust
from pyagent.core.messages import SamplingParams
from pyagent.infrastructure.engine.answer_text import AnswerText
from pyagent.infrastructure.engine.request import Output, Request
from pyagent.infrastructure.engine.tokens.detokenizer import Detokenizer


class _Letters:
    """The bytes of each token: one letter."""

    has_leading_space = False

    def __getitem__(self, token: int) -> bytes:
        return b"a"


class _Vocabulary:
    """A tokenizer's tokens that end an answer: none is drawn."""

    end_ids = frozenset[int]()


def make_request(number: int, tokens: list[int], max_tokens: int, on_output: Callable[[Output], None]) -> Request:
    """Return a request for the likeliest `max_tokens` tokens after these."""
    return Request(
        id=number,
        tokens=tokens,
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        max_tokens=max_tokens,
        sampler=_rust.SamplerState(temperature=0.0),
        tokenizer=_Vocabulary(),  # type: ignore[arg-type]
        text=AnswerText(Detokenizer(_Letters())),  # type: ignore[arg-type]
        grammar=None,
        on_output=on_output,
    )
