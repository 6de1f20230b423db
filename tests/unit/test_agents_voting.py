"""The voting agent: where ballots come from, which do not count, and what a wrong election is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyagent.cli.agent_options import task_of
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents import voting
from pyagent.logic.agents.reasoning import Reasoned
from pyagent.logic.agents.voting import Election, VotingAgent
from pyagent.logic.voting import reading
from pyagent.logic.voting.outcome import Outcome
from pyagent.testing import ScriptedBackend


def _run(task: Task) -> Outcome:
    fleet = Fleet(ScriptedBackend([]), [VotingAgent()])
    outcome = asyncio.run(fleet.run_agent("voting", task))
    assert isinstance(outcome, Outcome)
    return outcome


def _faults(outcome: Outcome) -> list[tuple[str, str]]:
    return [(each.place, each.fault) for each in outcome.invalid]


def test_command_line_and_arguments_say_the_same() -> None:
    """Words with options, lines, and JSON make one election."""
    typed = task_of(VotingAgent(), ["2: a > b; 1: b > a", "--method", "borda"], [])
    listed = Task(arguments={"method": "borda", "ballots": ["2: a > b", "1: b > a"]})
    objects = [{"ranking": ["a", "b"], "weight": 2}, {"ranking": ["b", ["a"]]}]
    given = Task(arguments={"method": "borda", "ballots": objects})
    assert _run(typed) == _run(listed) == _run(given)
    assert str(_run(given)) == "Winner: a  (3 votes, borda)\n  1. a\n  2. b\nvotes: a 2, b 1"


def test_invalid_ballots_are_named_and_the_others_count() -> None:
    """Each ballot that does not count has its place and its fault."""
    ballots = ["a > b > a", "a, b", {"approves": ["a"]}, {"ranking": []}, "0: a", {"ranking": ["a"], "weight": "1e9"}]
    voters = [{"ranking": ["a"], "voter": "Ann"}, {"ranking": ["b"], "voter": "Ann"}]
    arguments = {"method": "plurality", "options": ["a", "b"], "ballots": [*ballots, *voters, "c", "a\x1bb"]}
    outcome = _run(Task(arguments=arguments))
    assert (outcome.winner, outcome.num_ballots, outcome.num_invalid) == ("a", 1, 9)
    assert _faults(outcome) == [
        ("ballot 1", "it names a twice"),
        ("ballot 2", "ranks are separated by >, and equal ones by =; a comma is neither"),
        ("ballot 3", "it has approves, and this method counts ranking"),
        ("ballot 4", "it names no option"),
        ("ballot 5", "its weight is 0, expected one above 0"),
        (
            "ballot 6",
            "the weight is '1e9', expected a number of at most 12 digits, with 6 after the point, or a fraction such "
            "as 2/3",
        ),
        ("ballot 8", "Ann has voted before"),
        ("ballot 9", "there is no option 'c'; the options are a, b"),
        ("ballot 10", "an option's name has at most 200 letters and no control characters"),
    ]
    assert "\x1b" not in str(outcome)


@pytest.mark.parametrize(
    ("method", "text", "winner"),
    [
        ("schulze", "voter,2nd,1st\nAnn,b,a\nBo,a,b\nCy,b,a", "a"),
        ("borda", "a,b,count\n1,2,3\n2,1,4\n,1,1", "b"),
        ("approval", "a,b\nyes,no\nx,1\n,\n", "a"),
        ("approval", "first?,b\nyes,no", "first?"),
        ("quadratic", "a,b\n3,\n-1,2", None),
        ("weighted", "1st,weight\na,1/3\nb,0.4", "b"),
    ],
)
def test_csv_has_places_or_a_column_for_each_option(tmp_path: Path, method: str, text: str, winner: str | None) -> None:
    """Places may stand in any order; ranks, yes and no, and votes stand under their option."""
    path = tmp_path / "ballots.csv"
    path.write_text(text)
    outcome = _run(Task(files=(str(path),), arguments={"method": method}))
    assert (outcome.winner, outcome.tied) == (winner, [] if winner else ["a", "b"])


def test_json_file_and_lines_with_comments(tmp_path: Path) -> None:
    """A JSON file holds ballots or lines; any other file is lines; several files are one election."""
    (tmp_path / "a.json").write_text('["2: a > b", {"ranking": ["b"], "weight": "1/2"}]')
    (tmp_path / "b.txt").write_text("# from the north\n4: b > a  # by mail\n\n")
    files = (str(tmp_path / "a.json"), str(tmp_path / "b.txt"))
    outcome = _run(Task(files=files, arguments={"method": "plurality"}))
    assert outcome.rounds[0].votes == {"b": "9/2", "a": 2}


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.csv", "a,a\n1,2", "each once"),
        ("a.csv", "1st,2nd\na,b", "a column for each option"),
        ("a.csv", 'a,b\n"1,2', "is not CSV"),
        ("a.json", '{"a": 1}', "is not valid JSON"),
        ("a.json", '[{"rank": ["a"]}]', "rank"),
        ("a.txt", "a=1\nb", "no ballot counts; line 1"),
    ],
)
def test_file_that_is_no_election_is_refused(tmp_path: Path, name: str, text: str, fault: str) -> None:
    """What cannot be read is told with the file's name, or the first ballot's fault."""
    (tmp_path / name).write_text(text)
    method = "approval" if name == "a.txt" else "quadratic"
    text = text.replace("a=1\nb", "a > b")
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=fault):
        _run(Task(files=(str(tmp_path / name),), arguments={"method": method}))


def test_rows_with_faults_are_named(tmp_path: Path) -> None:
    """A rank that is none, and a row that is too long, are ballots that do not count."""
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1,first\n1,2,3\n")
    outcome = _run(Task(files=(str(tmp_path / "a.csv"),), arguments={"method": "borda"}))
    assert [place for place, _ in _faults(outcome)] == ["line 3", "line 4"]


def test_answers_of_earlier_steps_vote() -> None:
    """Each step has a vote for what it answers, however written; steps that write rankings rank."""
    told = {"one": Reasoned(answer="42 apples", strategy="x"), "two": "Answer: 42", "three": {"answer": "7"}}
    outcome = _run(Task(results={**told}, arguments={"method": "plurality"}))
    assert (outcome.winner, outcome.rounds[0].votes) == ("42 apples", {"42 apples": 2, "7": 1})
    ranked = {"one": "a > b", "two": "b > a", "three": "b > a"}
    assert _run(Task(results={**ranked}, arguments={"method": "schulze"})).winner == "b"


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (Task(text="a > b; b > a"), "say how rankings are counted"),
        (Task(text="#", arguments={"method": "borda"}), "there are no ballots"),
        (Task(text="a", arguments={"seed": 3}), "seed is for ties=random"),
        (Task(text="a", arguments={"quota": "half", "method": "majority"}), "quota is 'half'"),
        (Task(text="a", arguments={"method": "condorcet"}), "method"),
        (Task(text=";".join(f"o{n}" for n in range(65))), "65 options; the most is 64"),
        (Task(text=" > ".join(f"o{n}" for n in range(65)), arguments={"method": "borda"}), "names 65 options"),
    ],
)
def test_wrong_elections_are_refused(task: Task, fault: str) -> None:
    """One sentence says what is wrong."""
    with pytest.raises(RequestError, match=fault):
        _run(task)


def test_number_of_ballots_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More lines than the most are refused before they are counted."""
    monkeypatch.setattr(reading, "MAX_BALLOTS", 3)
    with pytest.raises(RequestError, match="more than 3 ballots"):
        _run(Task(text="a;a;a;a"))


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("3: a > b > c\n2: b > a", True),
        ("Ann > Bo; Bo > Ann", True),
        ("Is 5 > 3; or 2 > 1?", False),
        ("x > 2", False),
        ("Who should win?", False),
    ],
)
def test_ballots_are_its_task(text: str, is_own: bool) -> None:
    """A text of nothing but ballots is the agent's, and no question is."""
    assert ((VotingAgent().score(Task(text=text)) or 0.0) > 0.5) is is_own


def test_tool_counts_for_models() -> None:
    """The tool takes the same election."""
    (tool,) = voting.pyagent_register_tools()
    outcome = asyncio.run(tool.function(Election(method="borda", ballots=["a > b"])))  # type: ignore[arg-type]
    assert isinstance(outcome, Outcome)
    assert outcome.winner == "a"
