"""Probabilities of choices, from the log probabilities of tokens."""

from __future__ import annotations

import math

import pytest

from pyagent.core.fleet.choices import split_by_tokens
from pyagent.core.messages import TokenLogprob


def _token(text: str, **shares: float) -> TokenLogprob:
    told = [(name.replace("_", " "), math.log(share)) for name, share in shares.items()]
    return TokenLogprob(text, dict(told).get(text), told)


def test_pieces_of_a_label_count_for_it() -> None:
    """Every token that begins one label alone is that label's; what fits none is left out."""
    split = split_by_tokens([_token("po", po=0.4, positive=0.2, neg=0.3, x=0.1)], ["positive", "negative"])
    assert split is not None
    own, groups = split
    assert own == pytest.approx({"positive": 0.6 / 0.9, "negative": 0.3 / 0.9})
    assert groups == []


def test_labels_that_begin_alike_are_told_apart_by_the_next_token() -> None:
    """Along the answer the next token decides; labels off its way stay together."""
    tokens = [_token("in", **{"in": 0.6, "out": 0.4}), _token("side", side=0.75, put=0.25)]
    split = split_by_tokens(tokens, ["inside", "input", "output", "outside"])
    assert split is not None
    own, groups = split
    assert own == pytest.approx({"inside": 0.45, "input": 0.15})
    assert groups == [(["output", "outside"], pytest.approx(0.4))]


def test_a_label_that_another_begins_with_ends_where_nothing_fits() -> None:
    """`no` against `not sure`: what does not go on is the shorter one."""
    split = split_by_tokens([_token("no", no=1.0), _token("!", **{"!": 0.7, "t": 0.3})], ["no", "not sure"])
    assert split is not None
    assert split[0] == pytest.approx({"no": 0.7, "not sure": 0.3})


@pytest.mark.parametrize("tokens", [[], [TokenLogprob("a", None)], [_token("zzz", zzz=1.0)]])
def test_without_log_probabilities_nothing_is_told(tokens: list[TokenLogprob]) -> None:
    """A backend that tells none, or only tokens of no label, gives no distribution."""
    assert split_by_tokens(tokens, ["a", "b"]) is None


def test_spaces_before_an_answer_do_not_count() -> None:
    """Models that are not held to the choice begin with a space."""
    split = split_by_tokens([TokenLogprob(" a", -0.1, [(" a", math.log(0.5)), ("b", math.log(0.5))])], ["a", "b"])
    assert split is not None
    assert split[0] == pytest.approx({"a": 0.5, "b": 0.5})
