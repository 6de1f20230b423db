"""A peer that says nothing more, though its connection still stands: a paused process, a cable that was pulled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.nodes import cluster_of
from support.server import Model
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatDelta, ChatRequest, Message
from pyagent.infrastructure.engine.client import EngineState


class Own(Model):
    """A link that computes on its node, as the router has it."""

    def __init__(self, model: str, *script: ChatDelta | float) -> None:
        super().__init__(lambda _: list(script), [model])
        self.name = f"native:{model}"

    async def engine_state(self) -> EngineState:
        return EngineState(state="running", num_running=self.num_running)


def test_what_waits_for_a_dead_node_fails_at_once(tmp_path: Path) -> None:
    """When membership holds a silent peer for dead, its answers under way end, and so do those it asked for."""

    async def work() -> None:
        silent = Own("far", ChatDelta(content="on "), 60.0)
        async with cluster_of(tmp_path, a=[Own("near")], b=[silent]) as (a, b):
            [peer] = [peer.backend for peer in a.router]
            asked = asyncio.create_task(collect(peer.chat(ChatRequest(model="far", messages=[Message("user", "hi")]))))
            await until(lambda: silent.num_running == 1)
            view = a._members.views()[b.keys.node_id]
            a._members._changed(msgspec.structs.replace(view, state="dead"))
            with pytest.raises(PyAgentError, match="was lost"):
                await asked
            await until(lambda: silent.num_running == 0)

    asyncio.run(work())
