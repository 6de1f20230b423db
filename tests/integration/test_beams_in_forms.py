"""Beam search whose answers must match a form: each beam has its own place in the grammar."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.native import NUM_TOKENS, engine_logits, options, run, running

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import BackendError
from pyagent.core.grammars import GrammarSource, GrammarVocabulary
from pyagent.core.messages import (
    BeamSearch,
    ChatRequest,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
)
from pyagent.infrastructure.engine.grammar import GrammarError
from pyagent.infrastructure.engine.grammar.guidance import Guidance, GuidanceBackend, GuidanceMatcher

CHOICES = ["a", "the user is", "the system"]
CHOICE = ResponseFormat(type="choice", choice=CHOICES)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, 30]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def asked(form: ResponseFormat, width: int = 4, n: int = 1, **more: Any) -> ChatRequest:
    beam = BeamSearch(width=width)
    chosen = SamplingParams(max_tokens=60)
    return ChatRequest(
        **({"messages": [Message("user", "the user")], "beam": beam, "n": n, "sampling": chosen} | more),
        response_format=form,
    )


def texts_of(answer: Answer) -> list[str]:
    num = 1 + max(delta.index for delta in answer.deltas)
    return ["".join(delta.content for delta in answer.deltas if delta.index == index) for index in range(num)]


@pytest.mark.parametrize("blocks", [1024, 12])
def test_beams_follow_the_form(tiny_model_path: Path, blocks: int) -> None:
    """Every answer is of the form, and ends where that is whole, also where beams are computed again."""
    form = ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=SCHEMA))

    async def main() -> None:
        async with running(tiny_model_path, options(blocks=blocks)) as backend:
            answer = await collect(backend.chat(asked(form, n=3)))
            assert len(texts_of(answer)) == 3
            assert all(set(json.loads(text)) == {"a", "b"} for text in texts_of(answer))
            assert {delta.finish_reason for delta in answer.deltas if delta.finish_reason} == {"stop"}
            chosen = await collect(backend.chat(asked(CHOICE, width=8, n=2)))
            assert set(texts_of(chosen)) <= set(CHOICES)
            one = ResponseFormat(type="choice", choice=["a"])
            short = await collect(backend.chat(asked(one, sampling=SamplingParams(max_tokens=1))))
            assert (short.text, short.last.finish_reason) == ("a", "stop")
            cut = await collect(backend.chat(asked(form, sampling=SamplingParams(max_tokens=2))))
            assert cut.last.finish_reason == "length"

    run(main())


def test_best_beam_is_the_likeliest_text_of_the_form(tiny_model_path: Path) -> None:
    """With room for all beams the first answer is the likeliest way to say one of the texts."""

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            answer = await collect(backend.chat(asked(CHOICE, width=8, beam=BeamSearch(width=8, length_penalty=0))))
            model = await backend.load()
            prompt = (await model.input_processor.process(asked(CHOICE), lambda output: None)).tokens
            best: tuple[float, str] = (-math.inf, "")
            ways: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
            while ways:
                before, tokens = ways.pop()
                grammar = model.grammars.begin(CHOICE).result()
                for token in tokens:
                    grammar.accept(token)
                if grammar.is_finished:
                    best = max(best, (before, spelled(model, tokens)))
                    continue
                mask = grammar.mask()
                logits = engine_logits(tiny_model_path, [*prompt, *tokens], "bf16")[-1]
                may = [one for one in range(NUM_TOKENS) if mask[one // 8] >> one % 8 & 1]
                highest = max(logits[one] for one in may)
                total = math.log(math.fsum(math.exp(logits[one] - highest) for one in may)) + highest
                ways += [(before + logits[one] - total, (*tokens, one)) for one in may if logits[one] - total > -9]
            assert answer.text == best[1]

    run(main())


def spelled(model: Any, tokens: tuple[int, ...]) -> str:
    detokenizer = model.tokenizer.detokenizer()
    return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()


class Breaking(GuidanceMatcher):
    """Breaks at the sixth token that any of them is given."""

    num_left = 0

    def accept(self, token: int) -> None:
        Breaking.num_left -= 1
        if Breaking.num_left == 0:
            raise GrammarError("broken", "test")
        super().accept(token)

    def copy(self) -> Breaking:
        return Breaking(self.inner.deep_copy())


class BreakingBackend(GuidanceBackend):
    def compile(self, source: GrammarSource) -> Breaking:
        return Breaking(super().compile(source).inner)


class BreakingGrammars(Guidance):
    def open(self, vocabulary: GrammarVocabulary) -> BreakingBackend:
        Breaking.num_left = 6
        return BreakingBackend(vocabulary, 1)


def test_grammar_that_breaks_within_a_search_ends_it_alone(tiny_model_path: Path) -> None:
    """The request ends with the reason; the engine answers the next one, and holds nothing of the search."""

    async def main() -> None:
        async with running(tiny_model_path, replace(options(), grammar_backends=(BreakingGrammars(),))) as backend:
            with pytest.raises(BackendError, match="cannot be enforced: broken"):
                await collect(backend.chat(asked(CHOICE)))
            assert (await collect(backend.chat(asked(CHOICE)))).text in CHOICES
            model = await backend.load()
            assert model.runner.stats().active == 0

    run(main())
