"""The planner: a model makes a graph of the fleet's agents for a task that came without one.

The model is held to a JSON schema in which a step names agents that exist and steps before it, so that no plan is
circular. What it gives becomes a graph in TOML, which a person may be shown, and change. The planner is an agent of the
run, so its plan is in the journal, and a resumed run does not plan again. Where no plan can be made one agent gets the
task, with a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from pyagent.core.errors import AgentError, BackendError, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.graph_file import read_graph
from pyagent.core.fleet.graph_text import toml_of
from pyagent.core.fleet.steps import Step, check_agents
from pyagent.core.messages import JsonObject, SamplingParams

Planning = Literal["off", "auto", "ask"]
NAME = "planner"
ACCEPT, REFUSE = "accept", "refuse"
MAX_STEPS = 8
"""Of a plan by a model. A person may make it longer."""
_MAX_TASK_CHARACTERS = 600
_MAX_SHOWN_CHARACTERS = 4_000
_MAX_QUESTIONS = 20
_SAMPLING = SamplingParams(temperature=0.0, max_tokens=1024)
_SYSTEM = (
    "You plan work for a team of agents. Use as few steps as the task needs, one if one agent can do it. Each step "
    "names one agent, says in full what it is to do, and lists the steps before it whose results it needs. Steps that "
    "need nothing of each other run side by side. The last step gives the answer."
)


class Plan(msgspec.Struct, frozen=True):
    """What the planner gives: a graph in TOML; empty where one agent is to do the task, with a note that says why."""

    graph: str = ""
    note: str = ""

    def __str__(self) -> str:
        num_steps = self.graph.count("[[steps]]")
        return self.note or f"a plan of {num_steps} step{'s' * (num_steps != 1)}\n{self.graph}"


def wants_plan(planning: Planning, steps: Sequence[Step]) -> bool:
    """Return whether a plan is to be made: for one task that is for no agent by name."""
    return planning != "off" and len(steps) == 1 and steps[0] == Step(name=steps[0].name, task=steps[0].task)


def planning_of(plan: bool | Planning | None, by_settings: Planning, steps: Sequence[Step]) -> Planning:
    """Return whether and how a run is planned; raises `RequestError` for a plan of what is one already."""
    if plan is None:
        return by_settings if wants_plan(by_settings, steps) else "off"
    if plan is False or plan == "off":
        return "off"
    if plan is not True and plan not in {"auto", "ask"}:
        raise RequestError(f"plan is true, false, auto, ask or off, got {plan!r:.80}", param="plan")
    if not wants_plan("auto", steps):
        raise RequestError(
            "a plan is made for one task; with steps or a named agent there is nothing to plan", param="plan"
        )
    return ("ask" if by_settings == "ask" else "auto") if plan is True else plan


@dataclass(slots=True)
class Planner:
    """Makes a plan for these agents; one that `asks` shows it to a person first."""

    agents: Sequence[Agent]
    asks: bool
    name: str = NAME
    description: str = "Makes a graph of agents for a task."

    async def run(self, context: Context, task: Task) -> Plan:
        """Return the plan."""
        try:
            plan = Plan(toml_of(await self._steps(context, task)))
        except (AgentError, BackendError, RequestError) as error:
            plan = Plan(note=f"one agent gets the whole task, as no plan could be made: {error}")
        if plan.note:
            context.progress(plan.note)
        if self.asks and plan.graph:
            plan = await self._approved(context, plan)
        return plan

    async def _steps(self, context: Context, task: Task) -> list[Step]:
        """Return the steps of the model's plan. One that cannot run is asked for once more, with its fault."""
        names = [agent.name for agent in self.agents]
        drafted = await context.generate(
            self._prompt(task), schema=plan_schema(names), system=_SYSTEM, sampling=_SAMPLING
        )
        try:
            return steps_of(cast("JsonObject", drafted), task)
        except RequestError as error:
            drafted = await context.retry(f"That plan cannot run: {error}. Plan again.")
        try:
            return steps_of(cast("JsonObject", drafted), task)
        except RequestError as error:
            raise AgentError(f"the model's plan cannot run, asked twice: {error}", agent=self.name) from error

    def _prompt(self, task: Task) -> str:
        described = "\n".join(f"- {agent.name}: {agent.description}" for agent in self.agents)
        text = task.title
        text = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]} ..."
        files = f"\nFiles, which all steps get: {', '.join(task.files[:20])}" if task.files else ""
        return f"Agents:\n{described}\n\nTask: {text}{files}\n\nThe plan:"

    async def _approved(self, context: Context, plan: Plan) -> Plan:
        """Return the plan that a person accepts; raises `RequestError` for one that is refused."""
        fault = ""
        for _ in range(_MAX_QUESTIONS):
            answer = await context.ask(_question(plan.graph, fault), kind="plan")
            if answer.strip().lower() == REFUSE:
                break
            if answer.strip().lower() == ACCEPT:
                return plan
            try:
                checked_plan(answer, context.task, [agent.name for agent in self.agents])
            except RequestError as error:
                fault = str(error)
            else:
                return Plan(answer)
        raise RequestError("the plan was refused", param="plan", code="refused")


def _question(graph: str, fault: str) -> str:
    wrong = f"that is neither {ACCEPT} nor {REFUSE}, and no plan: {fault}\n\n" if fault else ""
    return f"{wrong}run this plan? {ACCEPT}, {REFUSE}, or the plan as it shall be:\n\n{graph}"


def plan_schema(names: Sequence[str]) -> JsonObject:
    """Return the schema that a model's plan is held to: steps of these agents, each after some before it."""
    steps = {f"step_{number}": _step_schema(names, number) for number in range(1, MAX_STEPS + 1)}
    return {"type": "object", "properties": steps, "required": ["step_1"], "additionalProperties": False}


def _step_schema(names: Sequence[str], number: int) -> JsonObject:
    fields: JsonObject = {
        "agent": {"type": "string", "enum": list(names)},
        "task": {"type": "string", "minLength": 1, "maxLength": _MAX_TASK_CHARACTERS},
    }
    if number > 1:
        before = [f"step_{each}" for each in range(1, number)]
        fields["after"] = {"type": "array", "items": {"type": "string", "enum": before}, "maxItems": number - 1}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def steps_of(drafted: JsonObject, task: Task) -> list[Step]:
    """Return the steps of a plan that fits the schema; raises `RequestError` for one that cannot run."""
    steps = [
        Step(
            name=name,
            agent=step["agent"],
            task=Task(text=step["task"].strip(), files=task.files),
            after=tuple(dict.fromkeys(step.get("after", ()))),
        )
        for name, step in cast("dict[str, dict[str, str]]", drafted).items()
    ]
    for step in steps:
        if not step.task.text:
            raise RequestError(f"{step.name} does not say what is to be done", param="plan")
    checked_plan(toml_of(steps), task.text, [str(step.agent) for step in steps])
    return steps


def checked_plan(graph: str, task: str, names: Sequence[str]) -> list[Step]:
    """Return the steps of a plan in TOML; raises `RequestError` for one that cannot run with these agents."""
    steps = read_graph(graph, task, None)
    check_agents(steps, names)
    return steps
