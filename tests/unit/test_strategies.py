"""Reflection, debate and tree of thoughts: how each ends, what it keeps to, and what a model may do to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from support.fleets import Custom

from pyagent.core.errors import (
    AgentError,
    BackendError,
    BudgetError,
    DeadlineError,
    Decline,
    ModelError,
    PluginError,
    RequestError,
)
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.limits import FleetLimits
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.debate import Debate, debate
from pyagent.logic.strategies.debate import most_calls as most_of_debate
from pyagent.logic.strategies.reflection import Reflection, reflection
from pyagent.logic.strategies.reflection import most_calls as most_of_reflection
from pyagent.logic.strategies.tree_of_thoughts import Tree, TreeBounds, tree_of_thoughts
from pyagent.logic.strategies.written import debate_lines, reflection_lines, tree_lines
from pyagent.testing import Reply, ScriptedBackend

QUESTION = "How many pens has Ann?"


class Told:
    """An agent that says the same each time, or fails."""

    description = "says"

    def __init__(self, name: str, answer: str | Exception) -> None:
        self.name = name
        self.answer = answer
        self.tasks: list[str] = []

    async def run(self, context: Context, task: Task) -> str:
        self.tasks.append(task.text)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def run(strategy: Callable[[Context], Awaitable[Any]], backend: ScriptedBackend, *agents: Any, **limits: Any) -> Any:
    reasoner = Custom("reasoner", lambda context, task: strategy(context))
    fleet = Fleet(backend, [reasoner, *agents], limits=FleetLimits(**limits))
    return asyncio.run(fleet.run_agent("reasoner", QUESTION))


def scripted(*replies: str | Reply) -> ScriptedBackend:
    return ScriptedBackend(list(replies))


def last(request: ChatRequest) -> str:
    return request.messages[-1].text


def is_critique(request: ChatRequest) -> bool:
    return "Check your answer" in last(request)


def critique(score: int, *faults: str) -> str:
    return json.dumps({"faults": faults, "score": score})


# -- reflection -------------------------------------------------------------------------------------------------------


def reflect(backend: ScriptedBackend, **options: Any) -> Reflection:
    return run(lambda context: reflection(context, QUESTION, **options), backend)


def test_reflection_ends_where_no_fault_is_found() -> None:
    """The answer is revised by what the critique says, and stands when it says nothing."""
    backend = scripted("1. 3 * 4\nAnswer: 12", critique(3, "two are lost"), "1. 12 - 2\nAnswer: 10", critique(9))
    found = reflect(backend, num_rounds=5)
    assert (found.answer, found.steps, found.end.reason) == ("10", ["1. 12 - 2"], "no-faults")
    assert [(draft.answer, draft.score, draft.faults) for draft in found.drafts] == [
        ("12", 3, ["two are lost"]),
        ("10", 9, []),
    ]
    assert found.num_calls == len(backend.requests) == 4 < most_of_reflection(5)
    assert reflection_lines(found) == ["draft 1: 12  (3 of 10; two are lost)", "draft 2: 10  (9 of 10; no faults)"]


def test_reflection_grows_one_conversation_at_its_end() -> None:
    """Each prompt begins with the whole one before, so that an engine computes what is new."""
    backend = scripted("Answer: 1", critique(1, "a"), "Answer: 2", critique(2, "b"), "Answer: 3", critique(9))
    reflect(backend, num_rounds=3)
    for before, after in zip(backend.requests, backend.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages


def test_reflection_ends_at_its_bound_with_the_best_draft() -> None:
    """A critique that never ends is ended, and the draft with the highest score is taken, of equal ones the first."""
    answers = iter(f"Answer: {number}" for number in range(100))
    scores = iter([2, 7, 7, 4])
    backend = ScriptedBackend(lambda one: critique(next(scores), "bad") if is_critique(one) else next(answers))
    found = reflect(backend, num_rounds=3)
    assert (found.answer, found.end.reason) == ("1", "rounds")
    assert len(backend.requests) == 8 < most_of_reflection(3)


def test_reflection_ends_where_an_answer_repeats() -> None:
    """A model that goes back to what it said before is not asked again; the draft with the best score stands."""
    backend = scripted("Answer: 12", critique(6, "x"), "Answer: 10", critique(2, "y"), "Answer: 12.0")
    found = reflect(backend, num_rounds=8)
    assert (found.answer, found.end.reason) == ("12", "repeated")
    assert found.end.text == "draft 3 says what draft 1 said"
    assert reflection_lines(found)[2] == "draft 3: 12.0  (said before)"


@pytest.mark.parametrize("malformed", ["no JSON", '{"faults": []}', '{"faults": [], "score": 99}', "[]", '"x"'])
def test_critique_that_does_not_fit_twice_ends_it(malformed: str) -> None:
    """It is asked for once more with the reason; then the draft stands, not judged."""
    backend = scripted("Answer: 12", malformed, malformed)
    found = reflect(backend)
    assert (found.answer, found.end.reason, found.drafts[0].score) == ("12", "failed", None)
    assert "does not fit, asked twice" in found.end.text
    assert last(backend.requests[2]).startswith("That does not fit: ")
    backend = scripted("Answer: 12", malformed, critique(8))
    assert reflect(backend).end.reason == "no-faults"


def test_blank_faults_are_none() -> None:
    """A list of empty texts, or of words for nothing, names nothing to revise."""
    for nothing in ("", "None", "no faults.", "N/A"):
        assert reflect(scripted("Answer: 12", critique(5, " ", nothing))).end.reason == "no-faults"


def test_reflection_keeps_what_it_has_when_a_call_fails() -> None:
    """A revision that fails leaves the draft; a first answer that fails has nothing to leave."""
    down = Reply(error=BackendError("it is down", backend="b"))
    found = reflect(scripted("Answer: 12", critique(5, "x"), down))
    assert (found.answer, found.end.reason) == ("12", "failed")
    assert "it is down" in found.end.text
    with pytest.raises(BackendError, match="it is down"):
        reflect(scripted(down))
    with pytest.raises(AgentError, match="empty"):
        reflect(scripted(" "))


def test_reflection_ends_within_its_tokens() -> None:
    """Each call is reserved before it is made: the one that is over the budget is not made, and the end says so."""
    answers = iter(f"Answer: {number}" for number in range(100))

    def script(request: ChatRequest) -> str:
        return critique(5, "bad") if is_critique(request) else next(answers)

    for max_tokens in range(450, 3_000, 150):
        backend = ScriptedBackend(script)
        found = reflect(backend, num_rounds=8, max_tokens=max_tokens)
        assert found.num_tokens <= max_tokens
        assert found.num_calls == len(backend.requests)
        assert found.answer in [draft.answer for draft in found.drafts]
        assert found.end.reason == "budget"
        assert f"may use {max_tokens:,} tokens here" in found.end.text
    with pytest.raises(BudgetError, match="reflection may use 100 tokens here"):
        reflect(scripted(), max_tokens=100)
    with pytest.raises(RequestError, match="from 1 on"):
        reflect(scripted(), max_tokens=0)


def test_reflection_ends_with_the_runs_budget() -> None:
    """What the run has left bounds it too: it gives what it has instead of failing."""
    backend = scripted("Answer: 12", critique(5, "bad"))
    found = run(lambda context: reflection(context, QUESTION), backend, run_tokens=500)
    assert (found.answer, found.end.reason) == ("12", "budget")


# -- debate -----------------------------------------------------------------------------------------------------------


def hold_debate(backend: ScriptedBackend, *agents: Any, **options: Any) -> Debate:
    return run(lambda context: debate(context, QUESTION, **options), backend, *agents)


def by_seed(answers: dict[int, str | Reply]) -> ScriptedBackend:
    return ScriptedBackend(lambda one: answers[one.sampling.seed if one.sampling.seed is not None else -1])


def test_debaters_see_each_other_and_end_when_they_agree() -> None:
    """The second round shows all answers, the same beginning for each debater; agreement ends it before its bound."""
    answers: dict[int, str | Reply] = dict(
        enumerate(["Answer: 12", "x\nAnswer: 10", "Answer: 12", *["Answer: 10"] * 3])
    )
    backend = by_seed(answers)
    found = hold_debate(backend, num_rounds=5)
    assert (found.answer, found.end.reason, found.votes, found.agreement) == ("10", "agreed", {"10": 3}, 1.0)
    assert [each.answers for each in found.rounds] == [["12", "10", "12"], ["10", "10", "10"]]
    assert found.num_calls == len(backend.requests) == 6 < most_of_debate(3, 5, "plurality")
    first, second = backend.requests[:3], backend.requests[3:]
    assert {last(one) for one in first} == {QUESTION}
    assert all("Answer 2:\nx\nAnswer: 10" in last(one) for one in second)
    assert len({last(one).partition("Answer 3:")[0] for one in second}) == 1
    turns = [last(one).partition("correct what is wrong. ")[2].partition(" Now")[0] for one in second]
    assert sorted(turns) == [f"Answer {place} is yours." for place in (1, 2, 3)]
    assert len({last(one).partition(turn)[0] for one, turn in zip(second, turns, strict=True)}) == 1
    assert debate_lines(found) == ["round 1: 12 | 10 | 12", "round 2: 10 | 10 | 10"]


def test_debate_ends_where_no_answer_changes() -> None:
    """A round that moves nobody is the last one; the most votes win."""
    backend = ScriptedBackend(lambda one: "Answer: 7" if (one.sampling.seed or 0) % 3 == 1 else "Answer: 8")
    found = hold_debate(backend, num_rounds=8)
    assert (found.answer, found.end.reason, len(found.rounds)) == ("8", "repeated", 2)
    assert found.votes == {"8": 2, "7": 1}


def test_debate_ends_at_its_rounds() -> None:
    """Debaters that always say something new are stopped; of equal answers the first stands, and the tie is told."""
    backend = ScriptedBackend(lambda one: f"Answer: {one.sampling.seed}")
    found = hold_debate(backend, num_rounds=3, num_debaters=2, seed=5)
    assert (found.answer, found.end.reason, len(backend.requests)) == ("9", "rounds", 6)
    assert found.note == "answers tie: the one given most often in all rounds, or first, is taken"


def test_tie_goes_to_the_answer_given_most_often() -> None:
    """Two of three said it before a last round in which all three differ: it has not lost what it had."""
    answers: dict[int, str | Reply] = dict(enumerate(["Answer: a", "Answer: b", "Answer: b"]))
    answers |= {3: "Answer: c", 4: "Answer: d", 5: "Answer: b"}
    found = hold_debate(by_seed(answers))
    assert (found.answer, found.votes) == ("b", {"b": 1, "c": 1, "d": 1})


def test_debater_that_fails_is_left_out_and_asked_again() -> None:
    """Its place is told as failed, the others go on, and its last answer counts."""
    down = Reply(error=BackendError("it is down", backend="b"))
    answers: dict[int, str | Reply] = {0: "Answer: 1", 1: down, 2: "Answer: 2", 3: down, 4: "Answer: 2", 5: "Answer: 2"}
    found = hold_debate(by_seed(answers))
    assert found.rounds[0].answers == ["1", "", "2"]
    assert found.rounds[0].failures == {2: "it is down"}
    assert (found.answer, found.votes, found.end.reason) == ("2", {"2": 2, "1": 1}, "rounds")
    assert debate_lines(found)[0] == "round 1: 1 | no answer: it is down | 2"
    with pytest.raises(BackendError, match="it is down"):
        hold_debate(ScriptedBackend(lambda _: down))


def test_one_debater_alone_does_not_agree() -> None:
    """Where the others fail there is no agreement to end by, and the score says so."""
    down = Reply(error=BackendError("it is down", backend="b"))
    found = hold_debate(ScriptedBackend(lambda one: "Answer: 1" if (one.sampling.seed or 0) % 3 == 0 else down))
    assert (found.answer, found.end.reason) == ("1", "repeated")
    assert found.agreement == pytest.approx(1 / 3)


def test_debate_whose_tokens_end_in_mid_round_settles_what_there_is() -> None:
    """The first debaters of the round still answer, always the same ones, and the others keep their answers."""
    seen: set[str] = set()
    for _ in range(3):
        backend = ScriptedBackend(lambda one: Reply(text=f"Answer: {one.sampling.seed}", delay_seconds=0.001))
        found = hold_debate(backend, num_rounds=8, max_tokens=1_000)
        assert found.end.reason == "budget"
        assert found.num_tokens <= 1_000
        seen.add(json.dumps([each.answers for each in found.rounds]))
    assert len(seen) == 1
    assert "" in json.loads(seen.pop())[-1]


def judged(verdict: str) -> Callable[[ChatRequest], str]:
    """Debaters say 1, 2, 2; what a judge or voters are asked is answered by the verdict."""
    return lambda one: verdict if one.response_format else f"Answer: {min(2, (one.sampling.seed or 0) % 3 + 1)}"


def test_judge_settles_a_debate() -> None:
    """The judge's number is the answer, with the reason; where it gives none, the most votes count and it is told."""
    found = hold_debate(ScriptedBackend(judged('{"reason": "it adds up", "best": "2"}')), settle="judge")
    assert (found.answer, found.settled_by, found.note) == ("1", "judge", "the judge: it adds up")
    assert found.num_calls <= most_of_debate(3, 2, "judge")
    for wrong in ('{"reason": "x", "best": "3"}', "nonsense"):
        found = hold_debate(ScriptedBackend(judged(wrong)), settle="judge")
        assert (found.answer, found.settled_by) == ("2", "plurality")
        assert found.note.startswith("settled by plurality, not by judge: ")
    assert hold_debate(ScriptedBackend(lambda _: "Answer: 1"), settle="judge").settled_by == "judge"


@pytest.mark.parametrize("method", ["borda", "schulze", "ranked-choice", "runoff"])
def test_rankings_settle_a_debate(method: Any) -> None:
    """Each debater ranks the answers; a number named twice counts once."""
    found = hold_debate(ScriptedBackend(judged('{"ranking": ["2", "2"]}')), settle=method)
    assert (found.answer, found.settled_by) == ("1", method)
    found = hold_debate(ScriptedBackend(judged("nonsense")), settle=method)
    assert (found.answer, found.settled_by) == ("2", "plurality")
    assert found.num_calls == most_of_debate(3, 2, method)


def test_majority_that_is_none_is_told() -> None:
    """Two of three are a majority; one of three is not, and the most votes count instead."""
    assert hold_debate(ScriptedBackend(judged("")), settle="majority").settled_by == "majority"
    found = hold_debate(ScriptedBackend(lambda one: f"Answer: {(one.sampling.seed or 0) % 3}"), settle="majority")
    assert found.settled_by == "plurality"
    assert "no answer has a majority" in found.note


def test_agents_debate_by_name() -> None:
    """Each name is a debater, which is shown the others' answers; one that fails is told by its place."""
    ann, bob = Told("ann", "Answer: 4"), Told("bob", "so\nAnswer: 5")
    eve = Told("eve", AgentError("eve is away", agent="eve"))
    found = hold_debate(ScriptedBackend([]), ann, bob, eve, agents=["ann", "bob", "eve"])
    assert (found.answer, found.votes) == ("4", {"4": 1, "5": 1})
    assert found.rounds[0].failures == {3: "eve is away"}
    assert ann.tasks[0] == QUESTION
    assert "Answer 2:\nso\nAnswer: 5" in ann.tasks[1]
    assert "Answer 1 is yours." in ann.tasks[1]
    assert "None of them is yours." in eve.tasks[1]
    with pytest.raises(RequestError, match="there is no agent 'nina'"):
        hold_debate(ScriptedBackend([]), agents=["nina", "nina"])


@pytest.mark.parametrize(
    "error",
    [
        PluginError("it is broken", plugin="p"),
        DeadlineError("eve took too long"),
        Decline("not mine"),
        ModelError("no weights", model="m"),
        ValueError("a bug"),
    ],
)
def test_debater_that_fails_in_any_way_takes_no_other_with_it(error: Exception) -> None:
    """Whatever an agent raises is its place without an answer."""
    eve, ann = Told("eve", error), Told("ann", "Answer: 4")
    found = hold_debate(ScriptedBackend([]), ann, eve, agents=["ann", "eve"])
    assert (found.answer, list(found.rounds[0].failures)) == ("4", [2])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"num_debaters": 1}, "debaters"),
        ({"num_debaters": -1}, "debaters"),
        ({"num_debaters": 17}, "debaters"),
        ({"agents": ["ann"]}, "debaters"),
        ({"num_rounds": 0}, "rounds"),
        ({"num_rounds": 9}, "rounds"),
        ({"agents": ["ann", "bob"], "settle": "borda"}, "settle"),
    ],
)
def test_debates_out_of_range_are_refused(options: dict[str, Any], param: str) -> None:
    """Nothing is asked before the numbers are right."""
    with pytest.raises(RequestError) as raised:
        hold_debate(ScriptedBackend([]), **options)
    assert raised.value.param == param


# -- tree of thoughts -------------------------------------------------------------------------------------------------


def search_tree(
    backend: ScriptedBackend, *, search: Any = "beam", max_tokens: int | None = None, **bounds: int
) -> Tree:
    bounded = TreeBounds(**bounds)
    return run(
        lambda context: tree_of_thoughts(context, QUESTION, search=search, bounds=bounded, max_tokens=max_tokens),
        backend,
    )


def path_of(request: ChatRequest) -> list[str]:
    """The steps that a prompt has."""
    lines = last(request).partition("Steps so far:\n")[2].partition("\n\n")[0].splitlines()
    return [line.partition(". ")[2] for line in lines]


def thinker(
    proposals: Callable[[Sequence[str]], Sequence[str]], value: Callable[[Sequence[str]], tuple[int, bool] | str]
) -> ScriptedBackend:
    """A model that proposes and values by functions of the path, and answers with the path."""

    def answer(request: ChatRequest) -> str:
        path, told = path_of(request), last(request)
        if "Propose next steps" in told:
            return json.dumps({"thoughts": proposals(path)})
        if "How good is the last step" in told:
            found = value(path)
            return found if isinstance(found, str) else json.dumps({"score": found[0], "is_solved": found[1]})
        return f"Answer: {'>'.join(path) or 'nothing'}"

    return ScriptedBackend(answer)


def abc(path: Sequence[str]) -> list[str]:
    return [f"{''.join(path)}{letter}" for letter in "abc"]


def test_beam_follows_the_best_and_prunes_the_rest() -> None:
    """Only the beam's thoughts are gone on from, those below the least score never, and the solved path is answered."""
    backend = thinker(abc, lambda path: (9 if path[-1].endswith("b") else 5, len(path) == 3 and path[-1][-1] == "b"))
    found = search_tree(backend, beam=1, branches=3, depth=3)
    assert (found.answer, found.end.reason, found.score) == ("b>bb>bbbb", "solved", 9)
    assert found.path == ["b", "bb", "bbbb"]
    assert found.num_calls == len(backend.requests) == 3 * (1 + 3) + 1
    parents = {node.parent for node in found.nodes}
    assert len(parents) == 3
    lines = tree_lines(found)
    assert [line.split()[-1] for line in lines if line.lstrip().startswith("*")] == found.path
    assert len(lines) == len(found.nodes)


def test_thoughts_of_one_parent_share_the_beginning_of_their_prompts() -> None:
    """What stands before a candidate is the same for all of them, and begins with the question."""
    backend = thinker(abc, lambda path: (5, False))
    search_tree(backend, beam=1, depth=1)
    values = [last(one) for one in backend.requests if "How good" in last(one)]
    assert len({text.partition("1. ")[0] for text in values}) == 1
    assert all(text.startswith(QUESTION) for text in values)


def test_equal_scores_go_by_the_order_of_proposals() -> None:
    """With nothing to choose by, the first is taken, each time."""
    found = search_tree(thinker(abc, lambda _: (5, False)), beam=2, depth=2)
    assert found.end.reason == "rounds"
    assert found.path == ["a", "aa"]


@pytest.mark.parametrize("search", ["beam", "depth-first"])
def test_search_where_nothing_is_good_enough_ends_and_answers(search: Any) -> None:
    """Pruned thoughts are not gone on from: the question is answered without them."""
    found = search_tree(thinker(abc, lambda _: (2, True)), search=search)
    assert (found.answer, found.end.reason, found.path, found.score) == ("nothing", "pruned", [], None)
    assert [node.is_kept for node in found.nodes] == [False] * 3


@pytest.mark.parametrize("search", ["beam", "depth-first"])
def test_malformed_scores_are_no_scores(search: Any) -> None:
    """A value that does not fit twice leaves its thought out; where none fits, the search ends and answers."""
    found = search_tree(thinker(abc, lambda path: "good!" if path[-1] == "a" else (5, True)), search=search)
    assert (found.path, found.nodes[0].score) == (["b"], None)
    found = search_tree(thinker(abc, lambda _: '{"score": 11, "is_solved": false}'), search=search)
    assert (found.answer, found.end.reason) == ("nothing", "failed")


def test_depth_first_goes_back_to_the_next_best() -> None:
    """The best branch is followed to its end first; the next best after it, until one is solved."""

    def value(path: Sequence[str]) -> tuple[int, bool]:
        if path[0] == "a":
            return (9, False) if len(path) == 1 else (1, False)
        return (5, path == ["b", "ba"])

    found = search_tree(thinker(abc, value), search="depth-first", depth=2)
    assert (found.path, found.end.reason) == (["b", "ba"], "solved")
    assert [node.text for node in found.nodes if node.depth == 2] == ["aa", "ab", "ac", "ba", "bb", "bc"]


@pytest.mark.parametrize("search", ["beam", "depth-first"])
@pytest.mark.parametrize("max_calls", [2, 3, 5, 9, 17])
def test_search_keeps_to_its_calls(search: Any, max_calls: int) -> None:
    """However deep it may go, it makes no more calls than it is given, and the last one is the answer."""
    backend = thinker(abc, lambda path: (min(10, 4 + len(path)), False))
    found = search_tree(backend, search=search, depth=8, beam=8, max_calls=max_calls)
    assert found.end.reason == "calls"
    assert f"at most {max_calls} calls" in found.end.text
    assert found.num_calls == len(backend.requests) <= max_calls
    assert backend.requests[-1].response_format is None
    assert found.answer == (">".join(found.path) or "nothing")


@pytest.mark.parametrize("search", ["beam", "depth-first"])
def test_search_keeps_to_its_tokens_and_still_answers(search: Any) -> None:
    """The answer's own tokens are kept: a search cut short at any place has one."""
    for max_tokens in range(700, 3_000, 230):
        backend = thinker(abc, lambda path: (min(10, 4 + len(path)), False))
        found = search_tree(backend, search=search, depth=8, beam=8, max_calls=200, max_tokens=max_tokens)
        assert found.end.reason == "budget"
        assert found.num_tokens <= max_tokens
        assert found.answer == (">".join(found.path) or "nothing")
    with pytest.raises(BudgetError, match="tree-of-thoughts may use 100 tokens here"):
        search_tree(ScriptedBackend([]), max_tokens=100)


def test_answer_goes_on_from_the_thought_that_the_tokens_are_left_for() -> None:
    """Long thoughts leave no room for a prompt with all of them: the last ones are left out, and so is their score."""
    lacking: list[int] = []
    for max_tokens in range(4_900, 5_120, 20):
        backend = thinker(lambda path: [f"{len(path) + 1}{' 猫' * 79}"], lambda path: (3 + len(path), False))
        found = search_tree(backend, branches=1, beam=1, depth=8, max_tokens=max_tokens)
        assert path_of(backend.requests[-1]) == found.path
        assert found.num_tokens <= max_tokens
        assert (found.end.reason, found.score) == ("budget", 3 + len(found.path))
        lacking.append(max(node.depth for node in found.nodes if node.is_kept) - len(found.path))
    assert set(lacking) == {0, 1}


def test_search_that_cannot_answer_gives_its_best_thought() -> None:
    """The model that fails at the end has thought already; one that fails from the start has not."""
    thinking = thinker(abc, lambda _: (8, True))
    down = Reply(error=BackendError("it is down", backend="b"))

    def script(request: ChatRequest) -> Reply | str:
        if request.response_format is None:
            return down
        return thinking._script(request)  # type: ignore[operator]

    found = search_tree(ScriptedBackend(script))
    assert (found.answer, found.end.reason) == ("a", "failed")
    with pytest.raises(BackendError, match="it is down"):
        search_tree(ScriptedBackend(lambda _: down))


def test_thoughts_said_before_are_no_new_ones() -> None:
    """Blank ones, equal ones and steps that were taken are not valued again; with none left the search ends."""
    backend = thinker(lambda _: ["go on", " GO  on", "2. go on", QUESTION, "]}", " "], lambda _: (5, False))
    found = search_tree(backend, depth=8, branches=6)
    assert (found.path, len(found.nodes), found.end.reason) == (["go on"], 1, "pruned")


@pytest.mark.parametrize(
    ("name", "value"),
    [("branches", 0), ("branches", 9), ("beam", 0), ("depth", 9), ("min_score", 11), ("max_calls", 1)],
)
def test_bounds_out_of_range_are_refused(name: str, value: int) -> None:
    """The bound is named."""
    with pytest.raises(RequestError) as raised:
        search_tree(ScriptedBackend([]), **{name: value})
    assert raised.value.param == name


def test_a_long_text_with_a_number_is_not_that_number() -> None:
    """Two reports that both name the year are two answers."""
    assert normal_form("In 2024 " + "it rained " * 30) != normal_form("In 2024 " + "it snowed " * 30)
    assert normal_form("In 2024.") == "2024"
