"""Voting methods against published elections, their ties, and properties that hold for every profile."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from random import Random

import pytest

from pyagent.core.errors import RequestError
from pyagent.logic.voting.ballots import Vote
from pyagent.logic.voting.election import How, hold
from pyagent.logic.voting.outcome import Outcome
from pyagent.logic.voting.profile import Profile
from pyagent.logic.voting.reading import read_lines
from pyagent.logic.voting.schulze import strongest_paths

TENNESSEE = """
42: Memphis > Nashville > Chattanooga > Knoxville
26: Nashville > Chattanooga > Knoxville > Memphis
15: Chattanooga > Knoxville > Nashville > Memphis
17: Knoxville > Chattanooga > Nashville > Memphis
"""
BURLINGTON = """
1332: Montroll > Kiss > Wright
767: Montroll > Wright > Kiss
455: Montroll
2043: Kiss > Montroll > Wright
371: Kiss > Wright > Montroll
568: Kiss
1513: Wright > Montroll > Kiss
495: Wright > Kiss > Montroll
1289: Wright
"""  # Burlington's mayor of 2009, the ballots as they rank the last three
ALASKA = """
27053: Begich > Palin > Peltola
15467: Begich > Peltola > Palin
11290: Begich
34049: Palin > Begich > Peltola
3652: Palin > Peltola > Begich
21272: Palin
47407: Peltola > Begich > Palin
4645: Peltola > Palin > Begich
23747: Peltola
"""  # the special election of 2022
SCHULZE = "5: ACBED;5: ADECB;8: BEDAC;3: CABED;7: CAEBD;2: CBADE;7: DCEBA;8: EBADC"
SCHULZE_TIE = "3: abcd;2: cbda;2: dabc;2: dbca"


def _spelled(ballots: str) -> str:
    """The ballots with > between letters."""
    return ";".join(
        f"{count}: {' > '.join(names)}" for count, names in (each.split(": ") for each in ballots.split(";"))
    )


def _hold(ballots: str, method: str, **how: object) -> Outcome:
    rules = How(method=method, **how)  # type: ignore[arg-type]
    return hold(read_lines(ballots, rules.kind), rules)


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        ("majority", None),
        ("plurality", "Memphis"),
        ("runoff", "Nashville"),
        ("ranked-choice", "Knoxville"),
        ("borda", "Nashville"),
        ("schulze", "Nashville"),
        ("weighted", "Memphis"),
    ],
)
def test_capital_of_tennessee(method: str, winner: str | None) -> None:
    """The usual example: methods choose three different cities, and none has a majority."""
    assert _hold(TENNESSEE, method).winner == winner


def test_borda_points_are_the_published_ones() -> None:
    """An option has a point for each one ranked below it."""
    (points,) = _hold(TENNESSEE, "borda").rounds
    assert points.votes == {"Nashville": 194, "Chattanooga": 173, "Memphis": 126, "Knoxville": 107}


def test_burlington_2009() -> None:
    """Plurality, ranked choice and Condorcet choose three different mayors, with the counts as published."""
    assert _hold(BURLINGTON, "plurality").winner == "Wright"
    ranked = _hold(BURLINGTON, "ranked-choice")
    assert (ranked.winner, ranked.rounds[0].eliminated) == ("Kiss", ["Montroll"])
    assert ranked.rounds[1].votes == {"Kiss": 4314, "Wright": 4064}
    condorcet = _hold(BURLINGTON, "schulze")
    assert condorcet.winner == condorcet.condorcet_winner == "Montroll"
    assert (condorcet.pairwise["Montroll"]["Kiss"], condorcet.pairwise["Kiss"]["Montroll"]) == (4067, 3477)
    assert (condorcet.pairwise["Montroll"]["Wright"], condorcet.pairwise["Wright"]["Montroll"]) == (4597, 3668)


def test_alaska_2022() -> None:
    """Ranked choice elects Peltola by 91,266 to 86,026; Begich would beat each of the others."""
    ranked = _hold(ALASKA, "ranked-choice")
    assert (ranked.winner, ranked.rounds[-1].votes) == ("Peltola", {"Peltola": 91_266, "Palin": 86_026})
    assert _hold(ALASKA, "schulze").condorcet_winner == "Begich"


def test_schulze_own_example() -> None:
    """45 voters of Schulze's paper: E > A > C > B > D, along paths of the published strengths."""
    outcome = _hold(_spelled(SCHULZE), "schulze")
    assert (outcome.winner, outcome.condorcet_winner) == ("E", None)
    assert outcome.ranking == [["E"], ["A"], ["C"], ["B"], ["D"]]
    votes = {one: {two: int(outcome.pairwise[one].get(two, 0)) for two in "ABCDE"} for one in "ABCDE"}
    paths = strongest_paths(votes)
    assert {one: [paths[one][two] for two in "ABCDE" if two != one] for one in "ABCDE"} == {
        "A": [28, 28, 30, 24],
        "B": [25, 28, 33, 24],
        "C": [25, 29, 29, 24],
        "D": [25, 28, 28, 24],
        "E": [25, 28, 28, 31],
    }


def test_schulze_tie_is_told_or_broken() -> None:
    """The paper's example of two winners: both are told, unless the order of the options or a lot decides."""
    told = _hold(_spelled(SCHULZE_TIE), "schulze")
    assert (told.winner, told.tied, told.ranking) == (None, ["b", "d"], [["b", "d"], ["a", "c"]])
    assert "b, d tie" in told.note
    ordered = _hold(_spelled(SCHULZE_TIE), "schulze", ties="order", options=("d", "c", "b", "a"))
    assert (ordered.winner, ordered.tied) == ("d", [])
    lots = [_hold(_spelled(SCHULZE_TIE), "schulze", ties="random", seed=seed).winner for seed in range(16)]
    assert set(lots) == {"b", "d"}
    assert lots == [_hold(_spelled(SCHULZE_TIE), "schulze", ties="random", seed=seed).winner for seed in range(16)]


def test_approval_counts_each_approved_option() -> None:
    """Tennessee with everybody approving of two or three cities."""
    outcome = _hold("42: M; 26: N, C; 15: C, K, N; 17: K, C, N", "approval")
    assert (outcome.tied, outcome.rounds[0].votes) == (["N", "C"], {"N": 58, "C": 58, "M": 42, "K": 32})


def test_quadratic_votes_cost_their_squares() -> None:
    """Few who care much may outvote many who care little; a ballot above its credits does not count."""
    outcome = _hold("3: park=2, road=1\nroad=9, park=-4\nroad=10, park=1", "quadratic")
    assert (outcome.winner, outcome.rounds[0].votes) == ("road", {"road": 12, "park": 2})
    assert [(each.place, each.fault) for each in outcome.invalid] == [("line 3", "it spends 101 credits of 100")]
    assert _hold("road=9, park=-4", "quadratic", credits=Fraction(97)).num_invalid == 0
    with pytest.raises(RequestError, match="97 credits of 96"):
        _hold("road=9, park=-4", "quadratic", credits=Fraction(96))


def test_weighted_council_of_1958() -> None:
    """The EEC's council: 12 of 17 votes. Three large states carry it, two with Belgium and Luxembourg do not."""
    quota = Fraction(12, 17)
    assert _hold("4: yes;4: yes;4: yes;2: no;2: no;1: no", "weighted", quota=quota).winner == "yes"
    lost = _hold("4: yes;4: yes;4: no;2: yes;2: no;1: yes", "weighted", quota=quota)
    assert (lost.winner, lost.note) == (None, "none has 12 of 17; the most is 11")
    with pytest.raises(RequestError, match="it has no weight"):
        _hold("yes; no", "weighted")


def test_majority_is_more_than_half_or_the_quota() -> None:
    """Half is no majority; two thirds is two thirds, exactly, in thirds and tenths of votes."""
    half = _hold("2: a; 1: b; 1: c", "majority")
    assert (half.winner, half.tied, half.note) == (None, [], "none has more than 2 of 4; the most is 2")
    assert _hold("1/3: a; 1/3: a; 1/3: b", "majority", quota=Fraction(2, 3)).winner == "a"
    assert _hold("0.1: a; 0.1: a; 0.1: b", "majority", quota=Fraction(2, 3)).winner == "a"


def test_equal_ranks_share_a_ballot() -> None:
    """Who is first together has a part of the vote each; fractions stay fractions."""
    outcome = _hold("a = b = c > d; a", "plurality")
    assert outcome.rounds[0].votes == {"a": "4/3", "b": "1/3", "c": "1/3", "d": 0}


def test_ranked_choice_follows_every_way_of_breaking_ties() -> None:
    """b and c tie for last: either may go, and each way has a winner of its own; an order chooses one."""
    ballots = "3: a > b; 2: b > c > a; 2: c > b > a; 1: a > c"
    told = _hold(ballots, "ranked-choice")
    assert told.tied == ["a", "b", "c"]
    kept = _hold(ballots, "ranked-choice", ties="order", options=("c", "a", "b"))
    assert (kept.winner, kept.rounds[0].eliminated) == ("c", ["b"])
    assert "c, b tie, broken by the order of the options" in kept.note


def test_ties_that_change_nothing_leave_one_winner() -> None:
    """Who of the last two goes first is of no account here, and the winner is not called tied."""
    assert _hold("5: a; 2: b > a; 2: c > a", "ranked-choice").winner == "a"
    assert _hold("3: a; 2: b > a; 2: c > a", "ranked-choice").winner == "a"


def test_runoff_of_a_tied_second_place() -> None:
    """Each that may meet the first is tried; the tie is told where it decides."""
    ballots = "4: a; 3: b > c; 3: c > a; 1: d > b"
    assert _hold(ballots, "runoff").tied == ["a", "c"]
    assert _hold(ballots, "runoff", ties="order", options=("c", "b", "a", "d")).winner == "c"
    assert _hold(ballots, "runoff", ties="order", options=("b", "c", "a", "d")).winner == "a"


def test_ways_of_breaking_ties_are_bounded() -> None:
    """64 options with one vote each have too many ways: that is said, and an order decides."""
    ballots = ";".join(f"o{n} > o{(n * 7 + 3) % 64}" for n in range(64))
    with pytest.raises(RequestError, match="break them by `ties` order or random"):
        _hold(ballots, "ranked-choice")
    assert _hold(ballots, "ranked-choice", ties="order").winner is not None


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ({"method": "borda", "quota": Fraction(1, 2)}, "quota is for"),
        ({"method": "majority", "quota": Fraction(3, 2)}, "at most 1"),
        ({"method": "borda", "credits": Fraction(5)}, "credits is for"),
        ({"method": "quadratic", "credits": Fraction(0)}, "above 0"),
        ({"method": "borda", "options": ("a", " a ")}, "given twice"),
    ],
)
def test_rules_without_a_meaning_are_refused(how: dict[str, object], fault: str) -> None:
    """A rule that the method has not is no silent decoration."""
    with pytest.raises(RequestError, match=fault):
        _hold("a > b", **how)  # type: ignore[arg-type]


_OPTIONS = ("a", "b", "c", "d")


def _random_ballots(chance: Random) -> str:
    """Up to six ballots of different lengths and weights."""
    return ";".join(
        f"{chance.randint(1, 3)}: {' > '.join(chance.sample(_OPTIONS, chance.randint(1, 4)))}"
        for _ in range(chance.randint(1, 6))
    )


@pytest.mark.parametrize("seed", range(40))
def test_schulze_elects_the_condorcet_winner_along_the_strongest_paths(seed: int) -> None:
    """Strengths equal those of all paths, tried one by one; who beats everybody wins alone."""
    outcome = _hold(_random_ballots(Random(seed)), "schulze", options=_OPTIONS)
    votes = {one: {two: int(outcome.pairwise[one].get(two, 0)) for two in _OPTIONS} for one in _OPTIONS}
    paths = strongest_paths(votes)
    for one, two in permutations(_OPTIONS, 2):
        assert paths[one][two] == max(
            min(
                votes[x][y] if votes[x][y] > votes[y][x] else 0
                for x, y in zip((one, *between), (*between, two), strict=True)
            )
            for count in range(3)
            for between in permutations(set(_OPTIONS) - {one, two}, count)
        )
    if outcome.condorcet_winner:
        assert outcome.winner == outcome.condorcet_winner


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("method", ["plurality", "runoff", "ranked-choice", "borda", "schulze"])
def test_tie_rules_choose_among_those_who_tie(seed: int, method: str) -> None:
    """However ties are broken, the winner is one of those told without a rule; a sole winner stays it."""
    ballots = _random_ballots(Random(seed))
    told = _hold(ballots, method, options=_OPTIONS)
    chosen = _hold(ballots, method, options=_OPTIONS, ties="random", seed=seed)
    assert chosen.winner in (told.tied or [told.winner])
    assert chosen.ranking[0] == [chosen.winner]
    assert sorted(name for group in chosen.ranking for name in group) == [*_OPTIONS]


@pytest.mark.parametrize("seed", range(20))
def test_borda_is_the_sum_of_pairwise_comparisons(seed: int) -> None:
    """An option's points are what ranks it above each other one, and half of what ranks both alike."""
    chance = Random(seed)
    votes = [
        Vote(
            Fraction(chance.randint(1, 4), 3),
            ranking=tuple((name,) for name in chance.sample(_OPTIONS, chance.randint(1, 4))),
        )
        for _ in range(4)
    ]
    profile = Profile.of(votes, _OPTIONS)
    above, points = profile.pairwise(), profile.borda()
    for one in _OPTIONS:
        wins = Fraction(sum(above[one][two] for two in _OPTIONS if two != one), profile.scale)
        losses = Fraction(sum(above[two][one] for two in _OPTIONS if two != one), profile.scale)
        assert points[one] == wins + (3 * profile.weight - wins - losses) / 2
