"""Beam search: its rules against an exhaustive search and a plain one, and its requests under little memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner

from pyagent.core.errors import RequestError
from pyagent.core.messages import BeamSearch, ChatRequest, FunctionDefinition, ResponseFormat, SamplingParams, Tool
from pyagent.core.runners.batch import Batch, Likelihood, StepOutput
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.sampling.beam_search import Search, SearchRules, check_beam
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits

Tokens = tuple[int, ...]
Scores = Callable[[tuple[int, ...]], list[tuple[int, float]]]
END = 0


def scores_of(seed: int, vocab: int) -> Scores:
    """Log probabilities of the next token that follow from the tokens before it, likeliest first."""

    def scores(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        weights = [1 + hash((seed, tokens, token)) % 997 for token in range(vocab)]
        total = sum(weights)
        found = [(token, math.log(weight / total)) for token, weight in enumerate(weights)]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    return scores


def plain_search(
    scores: Scores, beam: BeamSearch, max_tokens: int, stop: Tokens = ()
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search written down without requests, stopped by nothing but its length or `early_stopping`.

    Tokens that end with those of `stop` are an answer.
    """
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, max_tokens + 1):
        found = [
            (logprob + more, tokens, token)
            for logprob, tokens in beams
            for token, more in scores(tokens)[: 2 * beam.width]
        ]
        found.sort(key=lambda one: -one[0])
        beams = []
        for rank, (logprob, tokens, token) in enumerate(found[: 2 * beam.width]):
            longer = (*tokens, token)
            if token == END or length == max_tokens or (stop and longer[-len(stop) :] == stop):
                whole = tokens if token == END else longer
                done += [(logprob / length**beam.length_penalty, whole)] if rank < beam.width else []
            elif len(beams) < beam.width:
                beams.append((logprob, longer))
        done = sorted(done, reverse=True)[: beam.width]
        if not beams or (beam.early_stopping and len(done) == beam.width):
            break
    return done


def searched(
    scores: Scores, beam: BeamSearch, max_tokens: int, stop: Tokens = ()
) -> list[tuple[float, tuple[int, ...]]]:
    """The same by `SearchRules`."""
    rules = SearchRules(beam, frozenset({END}), max_tokens)
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while not rules.is_done:
        offers = [(tokens, logprob, scores(tokens)[: 2 * beam.width]) for tokens, logprob in beams]

        def stops(beam: int, token: int, before: list[tuple[Tokens, float]] = beams) -> bool:
            return bool(stop) and (*before[beam][0], token)[-len(stop) :] == stop

        beams = [((*beams[one.beam][0], one.token), one.logprob) for one in rules.choose(offers, stops)]
    return [(answer.score, answer.tokens) for answer in rules.answers]


beams_of_any_kind = st.builds(
    BeamSearch,
    width=st.integers(1, 5),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early_stopping=st.booleans(),
)


stops_of_any_kind = st.just(()) | st.tuples(st.integers(1, 4)) | st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beam=beams_of_any_kind,
    max_tokens=st.integers(1, 7),
    vocab=st.integers(2, 9),
    stop=stops_of_any_kind,
)
def test_rules_find_what_a_plain_search_finds(
    seed: int, beam: BeamSearch, max_tokens: int, vocab: int, stop: Tokens
) -> None:
    """Ending when no beam can do better changes nothing of what is found."""
    scores = scores_of(seed, vocab)
    found, expected = searched(scores, beam, max_tokens, stop), plain_search(scores, beam, max_tokens, stop)
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected])
    assert {tokens for _, tokens in found} == {tokens for _, tokens in expected}


def test_beams_wide_enough_find_the_likeliest_answer_there_is() -> None:
    """With as many beams as there are continuations the first answer is the best of all."""
    scores = scores_of(3, 4)

    def every(tokens: tuple[int, ...], logprob: float) -> list[tuple[float, tuple[int, ...]]]:
        if len(tokens) == 3:
            return [(logprob, tokens)]
        return [
            one
            for token, more in scores(tokens)
            for one in ([(logprob + more, tokens)] if token == END else every((*tokens, token), logprob + more))
        ]

    found = searched(scores, BeamSearch(width=64, length_penalty=0.0), 3)
    assert found[0][0] == pytest.approx(max(every((), 0.0))[0])


@dataclass
class LikelyRunner(CountingRunner):
    """Gives likelihoods that follow from the tokens after the prompt."""

    scores: Scores = field(default_factory=lambda: scores_of(1, 9))
    num_prompt: int = 0

    def execute(self, batch: Batch) -> StepOutput:
        output = super().execute(batch)
        for row, sequence_id in enumerate(batch.sequence_ids[: len(batch.samplers)]):
            if sequence_id >= 1000:
                likeliest = self.scores(tuple(self.pool.tokens(sequence_id)[self.num_prompt :]))
                output.likelihoods[row] = Likelihood(likeliest[0][1], likeliest)
        return output


class Spelled:
    """A tokenizer whose tokens are numbers."""

    end_ids = frozenset({END})

    def detokenizer(self) -> Spelled:
        return Spelled()

    def copy(self) -> Spelled:
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""


def spelled(tokens: Tokens) -> str:
    return "".join(f"{token} " for token in tokens)


def beam_client(num_prompt: int, max_tokens: int, beam: BeamSearch, stop: Tokens) -> Client:
    """A client whose request is searched."""
    ids = count(1000)

    def make(drawn: list[int]) -> Request:
        client = Client(next(ids), [*range(100, 100 + num_prompt), *drawn], 1)
        client.request.num_prompt_tokens = num_prompt
        client.request.max_tokens = max_tokens
        client.request.tokenizer = Spelled()  # type: ignore[assignment]
        client.request.end_ids = frozenset({END})
        client.request.params = SamplingParams(stop=(spelled(stop),) if stop else ())
        clients.append(client)
        return client.request

    clients: list[Client] = []
    lead = make([])
    Search(lead, beam, beam.width, make)
    return clients[0]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beam=beams_of_any_kind,
    num_prompt=st.integers(1, 40),
    max_tokens=st.integers(1, 30),
    num_blocks=st.integers(7, 40),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 64),
    abort_at=st.none() | st.integers(0, 10),
    stop=stops_of_any_kind,
)
def test_beams_are_those_of_the_plain_search_however_little_there_is(
    seed: int,
    beam: BeamSearch,
    num_prompt: int,
    max_tokens: int,
    num_blocks: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    abort_at: int | None,
    stop: Tokens,
) -> None:
    """Beside another request, with one place or many, preempted or forked: the answers are the same, and no block is
    held at the end. An aborted search ends once."""
    runner = LikelyRunner(num_blocks, scores=scores_of(seed, 9), num_prompt=num_prompt)
    engine = Engine(runner, SchedulerLimits(max_num_seqs, max_num_batched_tokens))
    client, other = beam_client(num_prompt, max_tokens, beam, stop), Client(1, [7] * 20, 40)
    engine.scheduler.add(client.request)
    engine.scheduler.add(other.request)
    step = 0
    while engine.step():
        if step == abort_at:
            engine.end(client.request)
        step += 1
        assert step < 5000
    assert other.is_well
    assert runner.pool.stats().active == 0
    assert not engine.scheduler.has_work
    assert [output.is_last for output in client.news].count(True) == 1
    if client.news[-1].finish_reason == "abort":
        return
    expected = plain_search(runner.scores, beam, max_tokens, stop)
    assert {output.tokens for output in client.news} == {tokens for _, tokens in expected}
    assert [output.index for output in client.news] == list(range(len(expected)))
    assert client.request.num_output_tokens == len(client.news[0].tokens)
    for output in client.news:
        is_stopped = bool(stop) and output.tokens[-len(stop) :] == stop
        assert output.text == spelled(output.tokens[: -len(stop)] if is_stopped else output.tokens)
        assert not is_stopped or output.finish_reason == "stop"


TOOL = Tool(FunctionDefinition("go"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam": BeamSearch(width=0)}, "beam"),
        ({"beam": BeamSearch(width=9)}, "beam"),
        ({"beam": BeamSearch(width=2, length_penalty=math.inf)}, "beam"),
        ({"beam": BeamSearch(width=2), "n": 3}, "n"),
        ({"beam": BeamSearch(width=2), "best_of": 2}, "best_of"),
        ({"beam": BeamSearch(width=2), "sampling": SamplingParams(top_logprobs=1)}, "top_logprobs"),
        (
            {"beam": BeamSearch(width=2), "response_format": ResponseFormat("json_object"), "tools": [TOOL]},
            "response_format",
        ),
        ({"beam": BeamSearch(width=2), "sampling": SamplingParams(presence_penalty=1)}, "repetition_penalty"),
    ],
)
def test_searches_that_cannot_be_made_are_refused_by_name(fields: dict[str, object], param: str) -> None:
    """What is out of range or does not go together is named."""
    request = ChatRequest(**fields)  # type: ignore[arg-type]
    assert request.beam is not None
    with pytest.raises(RequestError) as caught:
        check_beam(request, request.beam)
    assert caught.value.param == param
