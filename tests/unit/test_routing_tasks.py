"""Which agent gets a task in words: accuracy on the written tasks without a model, and the router's own cases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.fleets import Custom, echo, events_of, fleet_of

from pyagent.assembly import make_agents, make_host
from pyagent.core.config import Settings
from pyagent.core.errors import RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.router import route_by_scores
from pyagent.core.fleet.scores import Scores
from pyagent.core.fleet.typical_tasks import UNMET, likely_agents, typical_tasks
from pyagent.core.fleet.unmet_tasks import UNMET_TASKS
from pyagent.core.messages import ChatDelta, ChatRequest, PromptLogprob
from pyagent.testing import Reply, ScriptedBackend

DATA = Path(__file__).parent.parent / "data" / "routing"
COOK = ("cook a soup", "bake bread in the oven", "fry some eggs", "what can I eat")
SEW = ("sew a shirt", "mend the hole in my trousers", "knit a scarf", "what can I wear")


@pytest.fixture(scope="module")
def agents() -> dict[str, Agent]:
    """Return the built-in agents."""
    settings = Settings()
    return make_agents(settings, make_host(settings))


@pytest.mark.parametrize(("part", "least"), [("validation", 0.88), ("held_out", 0.85)])
def test_written_tasks_find_their_agent_without_a_model(agents: dict[str, Agent], part: str, least: float) -> None:
    """By rules and typical tasks alone; who changes either sees what it does to tasks they were not written on."""
    rows = [json.loads(line) for line in (DATA / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]

    async def right() -> int:
        scores, count = Scores(agents), 0
        for row in rows:
            route = route_by_scores(await scores.of(Task(text=row["task"])), {})
            if isinstance(route, list):
                shares = likely_agents(row["task"], {name: agents[name] for name in route})
                said = max(shares, key=lambda name: shares[name]) or "nobody"
            else:
                said = route.agent
            count += said == row["agent"]
        return count

    assert asyncio.run(right()) / len(rows) >= least


def test_the_router_takes_what_is_like_typical_tasks_and_leaves_the_rest(agents: dict[str, Agent]) -> None:
    """As runs have it, over all of one part: the agent, or the one that takes the rest for nobody's tasks."""
    told = ("score", "typical_tasks", "takes_rest")
    silent = [
        Custom(name, echo, **{each: getattr(agent, each) for each in told if hasattr(agent, each)})
        for name, agent in agents.items()
    ]
    fleet = fleet_of(*silent, script=lambda request: Reply(text="unused"))
    rows = [json.loads(line) for line in (DATA / "validation.jsonl").read_text(encoding="utf-8").splitlines()]
    routes = [(row["agent"], _route(fleet, row["task"])) for row in rows]
    right = [route.agent == {"nobody": "reasoning"}.get(agent, agent) for agent, route in routes]
    assert sum(right) / len(right) >= 0.9
    assert sum(route.how == "rest" for _, route in routes) <= 15
    assert not [route for _, route in routes if route.how == "model"]


@pytest.mark.parametrize("part", ["validation", "held_out"])
def test_no_measured_task_is_one_that_agents_tell(agents: dict[str, Agent], part: str) -> None:
    """The accuracy is of tasks that the router has not seen."""
    told = {task.casefold() for agent in agents.values() for task in typical_tasks(agent)}
    told |= {task.casefold() for task in UNMET_TASKS}
    rows = [json.loads(line) for line in (DATA / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 100
    assert {row["agent"] for row in rows} == {*agents, "nobody"} - {"assistant"}
    assert not [row["task"] for row in rows if row["task"].casefold() in told]


TIDE = Custom("tide", echo, description="Tells when the water comes.")


def _agents(**more: object) -> list[Custom]:
    return [Custom("cook", echo, typical_tasks=COOK), Custom("tailor", echo, typical_tasks=SEW, **more)]


def _route(fleet: Fleet, task: str) -> ev.RouteChosen:
    seen, _ = asyncio.run(events_of(fleet, task))
    return next(event for event in seen if isinstance(event, ev.RouteChosen))


def test_a_task_that_is_plainly_like_an_agents_goes_to_it() -> None:
    """No model is asked; the route names the task it is like and how sure that is."""
    route = _route(fleet_of(*_agents()), "please bake some bread in the oven and fry eggs for a soup")
    assert (route.agent, route.how) == ("cook", "examples")
    assert "it is like 'bake bread in the oven'" in route.reason
    assert route.score is not None
    assert route.score >= 0.6


class _Scoring(ScriptedBackend):
    """Finds a task likelier after the tasks that have a word."""

    def __init__(self, word: str) -> None:
        super().__init__(lambda _: Reply(text="unused"))
        self.word = word

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        if request.sampling.prompt_logprobs is None:
            raise RequestError("only scores")
        self.requests.append(request)
        prompt = request.prompt or ""
        entry = {0: PromptLogprob(-30.0 * (not prompt.endswith("-")) * (self.word not in prompt), 1, "x")}
        yield ChatDelta(prompt_logprobs=[None, entry], backend=self.name)
        yield ChatDelta(finish_reason="stop", backend=self.name)


@pytest.mark.parametrize(("word", "agent"), [("sew", "tailor"), ("soup", "cook")])
def test_doubt_is_settled_by_what_the_model_finds_likelier(word: str, agent: str) -> None:
    """Where typical tasks leave doubt, the model's likelihoods decide, and the route says how sure that is."""
    route = _route(Fleet(_Scoring(word), _agents()), "help")
    assert (route.agent, route.how) == (agent, "model")
    assert route.score is not None
    assert route.score > 0.9


def test_a_backend_that_scores_no_prompts_chooses_by_descriptions() -> None:
    """Then the model chooses among the names, as it does for agents that tell no tasks."""
    fleet = fleet_of(*_agents(), script=lambda request: Reply(text="tailor"))
    route = _route(fleet, "help")
    assert (route.agent, route.how) == ("tailor", "model")


def test_what_is_like_no_agents_tasks_goes_to_the_one_for_the_rest() -> None:
    """The route says that no agent is made for it."""
    route = _route(fleet_of(*_agents(takes_rest=True)), "Turn the radio on and switch the lamp off")
    assert (route.agent, route.how, route.reason) == ("tailor", "rest", "no agent is made for it")


def test_a_person_is_asked_about_what_no_agent_is_made_for() -> None:
    """With `route = ask` a person decides where tasks leave doubt or are for nobody."""
    fleet = fleet_of(*_agents(takes_rest=True), route="ask")
    seen, _ = asyncio.run(events_of(fleet, "Turn the radio on and switch the lamp off"))
    assert any(isinstance(event, ev.QuestionAsked) for event in seen)


@pytest.mark.parametrize("told", ["one text", None, 7, [1, 2], [""]])
def test_wrong_typical_tasks_are_none(told: object) -> None:
    """A plugin's nonsense takes nothing away from the others."""
    assert typical_tasks(Custom("odd", echo, typical_tasks=told)) == ()
    assert likely_agents("cook", {"odd": Custom("odd", echo, typical_tasks=told), "cook": _agents()[0]}) == {}


def test_an_agent_without_typical_tasks_is_known_by_its_description() -> None:
    """It takes nothing from agents that a task is plainly like, and gets what is plainly like its description."""
    poet = Custom("poet", echo, description="Writes verses and rhymes about love and the moon.")
    fleet = fleet_of(*_agents(takes_rest=True), poet, script=lambda request: Reply(text="unused"))
    bread, verses = _route(fleet, "bake bread in the oven"), _route(fleet, "verses and rhymes about the moon")
    assert (bread.agent, bread.how) == ("cook", "examples")
    assert (verses.agent, verses.how) == ("poet", "examples")
    assert "'Writes verses and rhymes" in verses.reason


@pytest.mark.parametrize("rest", [{}, {"takes_rest": True}])
def test_an_agent_without_typical_tasks_is_a_choice_where_tasks_leave_doubt(rest: dict[str, object]) -> None:
    """What is like no agent's tasks may still be for it: the model chooses by the descriptions."""
    fleet = fleet_of(*_agents(**rest), Custom("poet", echo), script=lambda request: Reply(text="poet"))
    route = _route(fleet, "xylophone")
    assert (route.agent, route.how) == ("poet", "model")


def test_one_agent_without_typical_tasks_costs_no_accuracy(agents: dict[str, Agent]) -> None:
    """A plugin's agent that only has a description does not make the router unsure of all others."""
    rows = [json.loads(line) for line in (DATA / "validation.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {name: agent for name, agent in agents.items() if typical_tasks(agent)}
    both = [likely_agents(row["task"], told) for row in rows for told in (known, known | {"tide": TIDE})]
    best = [max(shares, key=lambda name: shares[name]) for shares in both]
    assert sum(told == before for before, told in zip(best[::2], best[1::2], strict=True)) >= 98


def test_likely_agents_sum_to_one_with_nobody() -> None:
    """Of a task so long that it would say anything only the beginning is read."""
    shares = likely_agents("bake bread " * 50_000, {agent.name: agent for agent in _agents()})
    assert set(shares) == {"cook", "tailor", UNMET}
    assert sum(shares.values()) == pytest.approx(1.0)
