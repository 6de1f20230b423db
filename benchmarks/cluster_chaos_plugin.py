"""What the nodes of `cluster_chaos.py` answer with: the model `story`, whose right answers are known, and an agent.

Loaded as a plugin, as a user's would be. `story` gives its pieces one at a time and goes on from an answer's beginning.
The agent `ledger` has an effect: its tool writes a line into the file `CHAOS_LEDGER`, which all nodes share.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec
from fake_upstream import answer_to

from pyagent.plugin import (
    Agent,
    Backend,
    BackendFactory,
    Capabilities,
    ChatDelta,
    ChatRequest,
    Context,
    EmbedRequest,
    EmbedResult,
    FleetTool,
    Health,
    LinkSpec,
    ModelInfo,
    RequestError,
    SamplingParams,
    Settings,
    Task,
    Usage,
    hookimpl,
)

MODEL = "story"
NUM_PIECES, PIECE_CHARS, PIECE_SECONDS = 12, 5, 0.25


class Story:
    """Tells the one right answer to a question, piece by piece."""

    capabilities = Capabilities(assistant_prefix="continued")

    def __init__(self, name: str) -> None:
        self.name = name

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=MODEL, backend=self.name)]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        if request.model not in {"", MODEL}:
            raise RequestError(f"there is no model {request.model!r}", param="model", code="model_not_found")
        begun = request.assistant_prefix or request.answer_prefix or ""
        pieces = answer_to(request.messages[-1].text, NUM_PIECES)[len(str(begun)) // PIECE_CHARS :]
        for piece in pieces:
            await asyncio.sleep(PIECE_SECONDS)
            yield ChatDelta(content=piece, model=MODEL, backend=self.name)
        yield ChatDelta(finish_reason="stop", usage=Usage(3, len(pieces), 3 + len(pieces)), model=MODEL)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        raise RequestError("stories are not embedded", param="model")

    async def health(self) -> Health:
        return Health(is_ready=True, models=[MODEL])

    async def close(self) -> None:
        return None


class Entry(msgspec.Struct):
    """What the tool writes: the run, and which attempt at it."""

    run: str
    attempt: str


async def write_down(entry: Entry) -> str:
    """Append a line, whole, as `O_APPEND` has it."""
    line = f"{entry.run} {entry.attempt} {os.environ['CHAOS_NODE']} {time.monotonic():.3f}\n"
    file = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    return "written"


class Ledger:
    """An agent with an effect, and work before and after it."""

    name = "ledger"
    description = "Writes a run into the ledger."

    async def run(self, context: Context, task: Task) -> str:
        run, attempt = task.text.split()
        await context.generate("the user", sampling=SamplingParams(max_tokens=4, temperature=0))
        await asyncio.sleep(random.uniform(0.1, 0.8))
        await context.call_tool("write-down", {"run": run, "attempt": attempt})
        await asyncio.sleep(random.uniform(0.1, 0.8))
        return f"{run} is written"


def make_story(link: LinkSpec, settings: Settings) -> Backend:
    return Story(str(link))


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `story`."""
    return {"story": make_story}


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The agent, on the nodes that have it."""
    return [Ledger()] if os.environ.get("CHAOS_AGENT") else []


@hookimpl
def pyagent_register_tools() -> list[FleetTool]:
    """The agent's tool."""
    return [FleetTool("write-down", "Writes a run into the ledger.", Entry, write_down)]
