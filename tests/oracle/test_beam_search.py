"""Beam search against transformers' `generate` on the same float32 weights: the same sequences with the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from pyagent.core.messages import BeamSearch, SamplingParams
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.answer_text import AnswerText
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.sampling.beam_search import Search, num_offered
from pyagent.infrastructure.engine.sampling.sampler import make_sampler

pytestmark = pytest.mark.oracle

MAX_TOKENS = 12
PROMPT = [5, 99, 17, 3, 42, 180, 7]
Found = list[tuple[list[int], float]]


class Spelled:
    """A tokenizer whose tokens are words."""

    def __init__(self, end_ids: Sequence[int]) -> None:
        self.end_ids = frozenset(end_ids)
        self.vocab_size, self.suppressed_ids = 250, ()

    def words_as_tokens(self, words: Sequence[str]) -> list[list[int]]:
        raise NotImplementedError

    tokens_with = words_as_tokens

    def detokenizer(self) -> Spelled:
        return self

    copy = detokenizer

    def push(self, token: int) -> str:
        return f"<{token}>"

    def flush(self) -> str:
        return ""


def make_reference(folder: Path):
    """A small random Llama in float32, saved; its likelihoods are uneven enough for answers to differ."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=250,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(6.0 if parameter.dim() > 1 else 1.0)
    reference.save_pretrained(folder)
    return reference


def theirs(reference, beam: BeamSearch, end_ids: list[int], stop: str = "") -> Found:
    """What transformers finds, without end tokens and padding, best first."""
    import torch
    from transformers import StoppingCriteriaList

    def stops(sequences, scores, **_: object):
        spelled = ["".join(f"<{token}>" for token in row[len(PROMPT) :]) for row in sequences.tolist()]
        return torch.tensor([bool(stop) and stop in text for text in spelled])

    output = reference.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=MAX_TOKENS,
        num_beams=beam.width,
        num_return_sequences=beam.width,
        length_penalty=beam.length_penalty,
        early_stopping=beam.early_stopping or "never",
        eos_token_id=end_ids or None,
        pad_token_id=249,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        stopping_criteria=StoppingCriteriaList([stops]),
    )
    rows = output.sequences[:, len(PROMPT) :].tolist()
    ends = {-1, 249, *end_ids}  # -1 pads where there is no end token
    drawn = [row[: next((at for at, token in enumerate(row) if token in ends), len(row))] for row in rows]
    return list(zip(drawn, output.sequences_scores.tolist(), strict=True))


def ours(folder: Path, beam: BeamSearch, end_ids: list[int], stop: str = "") -> Found:
    """What the engine finds, on the runner, forks and all."""
    engine = Engine(CpuRunner(folder, RunnerOptions(threads=1, kv_bytes=1 << 22, kv_dtype="f32")))
    ids = count(1)
    told: list[object] = []

    def make(drawn: list[int]) -> Request:
        return Request(
            id=next(ids),
            tokens=[*PROMPT, *drawn],
            num_prompt_tokens=len(PROMPT),
            params=SamplingParams(stop=(stop,) if stop else ()),
            max_tokens=MAX_TOKENS,
            sampler=make_sampler(
                SamplingParams(temperature=0, top_logprobs=num_offered(beam, len(end_ids))), Spelled(end_ids)
            ),
            tokenizer=Spelled(end_ids),  # type: ignore[arg-type]
            text=AnswerText(Spelled(end_ids), (stop,) if stop else ()),  # type: ignore[arg-type]
            grammar=None,
            on_output=told.append,
        )

    search = Search(make([]), beam, beam.width, make)
    engine.scheduler.add(search.lead)
    while engine.step():
        pass
    assert len(told) == len(search.answers)
    return [(list(answer.tokens), answer.score) for answer in search.answers]


def assert_same(found: Found, expected: Found) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=2e-4)


def test_beams_and_scores_are_those_of_transformers(tmp_path: Path) -> None:
    """Widths, length penalties and both kinds of stopping, with no end token, one and three: the same sequences in the
    same order, each score within 2e-4."""
    reference = make_reference(tmp_path)
    best = theirs(reference, BeamSearch(width=4), [])[0][0]
    num_early = 0
    for end_ids in ([], best[4:5], [best[2], best[5], best[8]]):
        for width in (2, 4, 8):  # with one, transformers searches greedily and gives no scores
            for length_penalty in (-0.5, 0.0, 1.0, 2.0):
                for early_stopping in (False, True):
                    beam = BeamSearch(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
                    expected = theirs(reference, beam, end_ids)
                    assert_same(ours(tmp_path, beam, end_ids), expected)
                    num_early += any(len(tokens) < MAX_TOKENS for tokens, _ in expected)
    assert num_early > 20


@pytest.mark.parametrize("early_stopping", [False, True])
def test_beams_end_at_a_stop_text_where_those_of_transformers_do(tmp_path: Path, early_stopping: bool) -> None:
    """A stop text of two tokens ends a beam as a criterion of the same text does there."""
    reference = make_reference(tmp_path)
    for width in (2, 4, 8):
        beam = BeamSearch(width=width, early_stopping=early_stopping, length_penalty=0.0)
        tokens = theirs(reference, beam, [])[0][0]
        num_stopped = 0
        for at in (1, 3, 6):
            stop = f"<{tokens[at]}><{tokens[at + 1]}>"
            expected = theirs(reference, beam, [], stop)
            assert_same(ours(tmp_path, beam, [], stop), expected)
            num_stopped += any(len(drawn) == at + 2 for drawn, _ in expected)
        assert num_stopped
