"""What crosses between a program and the process of an isolated plugin: typed values, by msgpack, and no code.

An agent's calls are those of `core.fleet.remote`; `ARGUMENTS` says of what types their arguments are, and `RESULTS`
what comes of them. A call that is not in it is refused: what it gives is not an isolated plugin's to see.
"""

from __future__ import annotations

import msgspec

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.confidence import DoubtAct
from pyagent.core.fleet.events import QuestionKind
from pyagent.core.fleet.model_call import Completion
from pyagent.core.fleet.notes import Notes, NoteSpec
from pyagent.core.fleet.remote.messages import ToolView
from pyagent.core.messages import JsonObject, Message, ResponseFormat, SamplingParams
from pyagent.infrastructure.isolation.capabilities import Capabilities
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.fault import Fault

Raw = bytes
"""A value by msgpack."""
_MAX_BYTES = 64 << 20


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told of its run, without what is not a plugin's to know: files, traces, tenants."""

    run: str
    agent: str
    step: str
    depth: int
    attempt: int
    session: str
    max_concurrency: int
    seconds: float | None
    left_tokens: int | None
    tools: tuple[ToolView, ...]


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """What the process is: whose, and what it may do."""

    plugin: str
    target: str
    source: str
    allowed: Capabilities
    memory_bytes: int


class RunAgent(msgspec.Struct, frozen=True, tag="agent"):
    """Do a task."""

    name: str
    task: Task
    view: View


class ScoreTask(msgspec.Struct, frozen=True, tag="score"):
    """Say how well a task fits an agent: None, or the score and the reason to show."""

    name: str
    task: Task


class CallTool(msgspec.Struct, frozen=True, tag="tool"):
    """Call a tool."""

    name: str
    arguments: JsonObject


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Say what the plugin brings."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """What came of a call, or how it failed."""

    index: int
    value: Raw = b""
    fault: Fault | None = None


class AgentTold(msgspec.Struct, frozen=True):
    """An agent, as its plugin describes it: also the agents it spawns, and whether it scores tasks."""

    name: str
    description: str
    needs: tuple[str, ...] = ()
    has_score: bool = False


class ToolTold(msgspec.Struct, frozen=True):
    """A tool, as its plugin describes it."""

    name: str
    description: str
    parameters: JsonObject
    effect: str
    needs_approval: bool


class Described(msgspec.Struct, frozen=True, tag="described"):
    """What the plugin brings."""

    agents: tuple[AgentTold, ...] = ()
    tools: tuple[ToolTold, ...] = ()


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """A call of an agent's to its run."""

    index: int
    name: str
    args: Raw


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What the agent or the tool returned."""

    value: Raw


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """How the agent or the tool failed."""

    fault: Fault


ToPlugin = Start | RunAgent | ScoreTask | CallTool | Describe | Answered
FromPlugin = Described | Asked | Done | Failed

ARGUMENTS: dict[str, object] = {
    "answer": tuple[list[Message], ResponseFormat | None, SamplingParams],
    "complete": tuple[list[Message], SamplingParams, tuple[str, ...], int, JsonObject | None, bool],
    "likelihood": tuple[str],
    "embed": tuple[list[str]],
    "call_tool": tuple[str, JsonObject],
    "spawn": tuple[str, Task | str, int | None, float | None],
    "ask": tuple[str, tuple[str, ...], QuestionKind],
    "keep": tuple[object],
    "progress": tuple[str],
    "phase_ended": tuple[str, str | None, float],
    "report": tuple[float, str],
    "doubts": tuple[float],
    "note": tuple[NoteSpec],
    "notes": tuple[int, str | None],
    "stream": tuple[list[Message], SamplingParams],
    "piece": tuple[int, int],
    "close_stream": tuple[int],
}
RESULTS: dict[str, object] = {
    "answer": Completion,
    "complete": Completion,
    "likelihood": float,
    "embed": list[list[float]],
    "ask": str,
    "doubts": DoubtAct | None,
    "notes": Notes,
}


def to_plugin() -> Codec[ToPlugin]:
    """Return what reads and writes messages to a plugin."""
    return Codec(ToPlugin, "the program", _MAX_BYTES)


def from_plugin(plugin: str) -> Codec[FromPlugin]:
    """Return what reads and writes messages of a plugin."""
    return Codec(FromPlugin, f"the plugin {plugin}", _MAX_BYTES)
