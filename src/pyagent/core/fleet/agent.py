"""What an agent is, and the task it is given.

An agent is any object with a name, a description and `run`. Its types stand where Python has them: `run`'s return
annotation is the type of its result; an optional `arguments` attribute (a msgspec struct, or a union of tagged ones) is
the type of `Task.arguments`. The fleet checks both, so that nothing malformed spreads. Knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from reprlib import Repr
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, get_type_hints

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.field_errors import field_error, json_error
from pyagent.core.messages import JsonObject, Message
from pyagent.core.nearest import did_you_mean

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

T = TypeVar("T")
_MAX_SHOWN = 2_000
_MAX_SHOWN_ITEMS = 20
"""Of an argument that is a list or an object, which may be a table of millions of numbers."""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked of an agent.

    `results` holds the outputs of the steps that this one comes after, by step name; `history` what was said before in
    a conversation, oldest first, for agents that can go on from it.
    """

    text: str = ""
    files: tuple[str, ...] = ()
    arguments: JsonObject = {}
    results: dict[str, object] = {}
    history: tuple[Message, ...] = ()

    @property
    def title(self) -> str:
        """Return what to show of the task: its text, else its arguments as `top=3 path=src`, long ones cut."""
        return self.text or " ".join(f"{name}={_shown(value)}" for name, value in self.arguments.items())

    def arguments_as(self, kind: type[T]) -> T:
        """Return the arguments as `kind`, a msgspec struct; raises `RequestError` naming what is wrong."""
        try:
            return msgspec.convert(self.arguments, kind, strict=True)
        except msgspec.ValidationError as error:
            wrong = field_error(error, kind)
            raise RequestError(f"the arguments are not what the agent takes: {wrong}", param="arguments") from error


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}..."
    brief = Repr()
    brief.maxlist = brief.maxdict = _MAX_SHOWN_ITEMS
    brief.maxstring = brief.maxother = _MAX_SHOWN
    return brief.repr(value)


class Agent(Protocol):
    """A specialist. It may also have:

    - `arguments`: the type of `Task.arguments`, checked before it runs;
    - `score(task) -> float | None`: how well the task fits, from 0 (plainly not for it) to 1 (plainly for it); None
      when only its description can tell. `Score(0.9, "why")` also says why. It runs in a thread and must be quick;
    - `typical_tasks`: what people ask it for, in many words: where no score is sure, it gets the tasks like them.
      Without them it gets what has its name, what is plainly like its description, and what is like no agent's tasks
      and a model chooses it for;
    - `takes_rest`: True for the agent that gets what no agent is made for;
    - `needs`: names of agents it spawns;
    - `is_pure`: True when it keeps nothing from one task to the next and has no effects but through its context, so
      that it may be begun again elsewhere when the process that runs it dies;
    - `async close()`: releases what it holds, when the fleet ends.
    """

    name: str
    description: str

    async def run(self, context: Context, task: Task) -> object:
        """Do the task. What it returns must be of the annotated type, and not empty.

        Raises `Decline` when the task turns out not to be for it: the router hands it to the next agent.
        """
        ...


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What programs need to know to call an agent. `arguments` and `output` are JSON schemas."""

    name: str
    description: str
    arguments: JsonObject | None = None
    output: JsonObject | None = None
    needs: tuple[str, ...] = ()


def describe(agent: Agent) -> AgentInfo:
    """Return an agent's name, description and types."""
    return AgentInfo(
        name=agent.name,
        description=agent.description,
        arguments=_schema(arguments_type(agent)),
        output=_schema(output_type(agent)),
        needs=needs(agent),
    )


def arguments_type(agent: Agent) -> type[object] | None:
    """Return the type of the agent's `Task.arguments`; None when it takes none but text."""
    return cast("type[object] | None", getattr(agent, "arguments", None))


def output_type(agent: Agent) -> object:
    """Return the type `run` says it returns; `object` when it does not say."""
    run = agent.run
    try:
        return _returned_type(cast("Callable[..., object]", getattr(run, "__func__", run)))
    except TypeError:  # a callable that has no hash
        return object


@lru_cache(maxsize=1024)  # annotations are evaluated as code: a third of a step of an agent that does nothing
def _returned_type(function: Callable[..., object]) -> object:
    try:
        return cast("object", get_type_hints(function).get("return", object))
    except (NameError, TypeError, AttributeError):  # an annotation that only a type checker can resolve
        return object


def needs(agent: Agent) -> tuple[str, ...]:
    """Return the agents it spawns."""
    return tuple(cast("Sequence[str]", getattr(agent, "needs", ())))


def is_pure(agent: Agent) -> bool:
    """Return whether it may be begun again: what it did so far is then answered from what is recorded."""
    return getattr(agent, "is_pure", False) is True


def checked_task(agent: Agent, task: Task) -> Task:
    """Return the task, a JSON text read as arguments; raises `RequestError` when they are not what the agent takes."""
    kind = arguments_type(agent)
    if not task.arguments and kind is not None and task.text.lstrip().startswith("{"):
        try:
            arguments = msgspec.json.decode(task.text, type=JsonObject)
        except msgspec.DecodeError as error:
            wrong = json_error("the arguments", error, task.text.encode(errors="replace"))
            raise RequestError(f"{agent.name}: {wrong}", param="arguments") from error
        task = msgspec.structs.replace(task, text="", arguments=arguments)
    if task.arguments and kind is None:
        raise RequestError(f"{agent.name} takes a text, not arguments", param="arguments")
    if task.arguments and kind is not None:
        task.arguments_as(kind)
    if not (task.text.strip() or task.files or task.arguments or task.results):
        raise RequestError(f"{agent.name} needs a task: a text, a file or arguments", param="text")
    return task


def checked_output(agent: Agent, output: object) -> object:
    """Return the output; raises `AgentError` when it is empty or not of the type the agent promises."""
    if output is None or (isinstance(output, str) and not output.strip()):
        raise AgentError(f"{agent.name} gave an empty answer", agent=agent.name)
    kind = output_type(agent)
    if isinstance(kind, type) and kind is not object and not isinstance(output, kind):
        message = f"{agent.name} promises {kind.__name__} and gave {type(output).__name__}: {output!r:.80}"
        raise AgentError(message, agent=agent.name)
    return output


def text_of(output: object) -> str:
    """Return an output in words: a text as it is, else what its type says of itself, or JSON."""
    if isinstance(output, str):
        return output
    if isinstance(output, msgspec.Struct) and type(output).__str__ is not msgspec.Struct.__str__:
        return str(output)
    return msgspec.json.encode(output, enc_hook=str).decode()


_MAX_NAMES_TOLD = 12


def unknown_name(what: str, name: str, known: Sequence[str]) -> RequestError:
    """Return the error for an unknown name, with the nearest known one."""
    some = ", ".join(sorted(known)[:_MAX_NAMES_TOLD]) or "none"
    more = f" and {len(known) - _MAX_NAMES_TOLD} more" if len(known) > _MAX_NAMES_TOLD else ""
    hint = did_you_mean(name, known, f"there are {some}{more}")
    return RequestError(f"there is no {what} {name!r}; {hint}", param=what, code=f"{what}_not_found")


def _schema(kind: object) -> JsonObject | None:
    if kind is None or kind is object:
        return None
    try:
        return msgspec.json.schema(kind)
    except TypeError:
        return None
