"""Voting methods against pref_voting, on random profiles of whole rankings: the same winners, ties included."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pyagent.logic.voting.ballots import Ballot, Paper
from pyagent.logic.voting.election import How, hold

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
]
_OPTIONS = ("0", "1", "2", "3", "4")


def _profile(seed: int) -> Counter[tuple[int, ...]]:
    """Three to eight rankings of five options, so that ties are common."""
    chance = Random(seed)
    return Counter(tuple(chance.sample(range(5), 5)) for _ in range(chance.randint(3, 8)))


@pytest.mark.parametrize("method", ["plurality", "runoff", "ranked-choice", "borda", "schulze"])
def test_winners_are_those_of_pref_voting(method: str) -> None:
    """Over 200 profiles both tell the same winners; ties of rounds are followed in parallel by both."""
    from pref_voting.iterative_methods import instant_runoff_put, plurality_with_runoff_put
    from pref_voting.margin_based_methods import beat_path
    from pref_voting.profiles import Profile
    from pref_voting.scoring_methods import borda, plurality

    theirs = {
        "plurality": plurality,
        "runoff": plurality_with_runoff_put,
        "ranked-choice": instant_runoff_put,
        "borda": borda,
        "schulze": beat_path,
    }[method]
    for seed in range(200):
        counts = _profile(seed)
        papers = [
            Paper("", "", Ballot(ranking=[str(name) for name in ranking], weight=count))
            for ranking, count in counts.items()
        ]
        ours = hold(papers, How(method=method, options=_OPTIONS))  # type: ignore[arg-type]
        expected = theirs(Profile([*counts], [*counts.values()]))
        assert [int(name) for name in ours.tied or [ours.winner]] == sorted(expected), (seed, counts)
