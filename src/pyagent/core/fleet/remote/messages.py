"""What crosses between a run and an agent that works elsewhere. Values; how they travel is the executor's business."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.messages import JsonObject


class ToolView(msgspec.Struct, frozen=True):
    """A tool as an agent elsewhere sees it: `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told of its place in the run when it begins, for the `attempt`th time."""

    run: str
    agent: str
    step: str
    depth: int
    attempt: int
    tenant: str
    session: str
    max_concurrency: int
    seconds: float | None
    left_tokens: int | None
    tools: tuple[ToolView, ...]
    trace: Mapping[str, str]
    file_access: FileAccess
    reconsiders: bool = False


class AgentCall(msgspec.Struct, frozen=True):
    """The `index`th thing, from 0, that an agent elsewhere asks of its run or tells it, by the name of what is done."""

    attempt: int
    index: int
    name: str
    args: tuple[object, ...] = ()
    unlike: tuple[object, ...] = ()
    """Arguments by which a call does not differ from one made before: times."""
    number: str = ""
    """The call's number among its agent's (`scopes`), where it has one."""

    def key(self) -> bytes:
        """Return what is equal for calls that ask for the same."""
        said = msgspec.msgpack.encode((self.name, self.args), enc_hook=repr)
        return blake2b(said, digest_size=16).digest()
