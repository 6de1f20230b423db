"""The work of `fleet_agents.py`, in a process of its own: many assistants with tools over one backend.

The loop, its conversations, its journal and its limits are the fleet's own. Only what a model would decide is fixed, so
that every engine does the same work: an answer has exactly so many tokens, and a call is made after all but the last.

    python benchmarks/fleet_agents_work.py CHAIN_ENTRY [SETTING=VALUE ...] --agents 100 --turns 3 --tokens 32
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Literal, cast

import msgspec
from fleet_turns import WORDS
from msgspec.structs import replace
from quiet import seconds_of

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Backend, collect
from pyagent.core.config import load_settings
from pyagent.core.emulation.dialect import instruction, told_plainly
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    JsonObject,
    Message,
    ModelInfo,
    SamplingParams,
    ToolCallDelta,
)
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.logic.agents.assistant import AssistantAgent

SYSTEM_WORDS, TASK_WORDS, RESULT_WORDS = 640, 22, 40


def words(seed: str, count: int) -> str:
    """Return so many words, always the same for a seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


class Counts(msgspec.Struct):
    """What all agents together asked for and got, in tokens as the backend counts them, and how long that took."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process: all of the fleet, and of an engine embedded in it."""
    first_prompt: int = 0


class FixedTurns:
    """A backend whose answers have the same length, whoever gives them, and call a tool until the last turn."""

    def __init__(self, backend: Backend, num_turns: int, num_tokens: int) -> None:
        self.name, self.capabilities = backend.name, backend.capabilities
        self._backend, self._num_turns, self._num_tokens = backend, num_turns, num_tokens
        self.counts = Counts()

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer in exactly so many tokens; the last delta brings the call."""
        turn = sum(message.role == "assistant" for message in request.messages)
        sampling = SamplingParams(temperature=0.0, max_tokens=self._num_tokens, ignore_eos=True)
        stream = self._backend.chat(replace(_in_words(request), sampling=sampling))
        async with aclosing(cast("AsyncGenerator[ChatDelta]", stream)) as deltas:
            async for delta in deltas:
                self._count(delta)
                fixed = replace(delta, tool_calls=[])
                if delta.finish_reason and turn + 1 < self._num_turns:
                    yield replace(fixed, tool_calls=[_call(request, turn)], finish_reason="tool_calls")
                else:
                    yield replace(fixed, finish_reason=delta.finish_reason and "stop")

    def _count(self, delta: ChatDelta) -> None:
        if delta.usage is None:
            return
        counts, usage = self.counts, delta.usage
        counts.calls += 1
        counts.first_prompt = counts.first_prompt or usage.prompt_tokens
        counts.prompt_tokens += usage.prompt_tokens
        counts.cached_tokens += usage.prompt_tokens_details.cached_tokens
        counts.output_tokens += usage.completion_tokens
        if usage.completion_tokens != self._num_tokens:
            raise SystemExit(f"{self.name} gave {usage.completion_tokens} tokens, not {self._num_tokens}")

    async def models(self) -> list[ModelInfo]:
        """Those of the backend."""
        return await self._backend.models()

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """As the backend does."""
        return await self._backend.embed(request)

    async def health(self) -> Health:
        """That of the backend."""
        return await self._backend.health()

    async def close(self) -> None:
        """Close the backend."""
        await self._backend.close()


def _in_words(request: ChatRequest) -> ChatRequest:
    """Return the request with its tools, calls and results in words: the same prompt for every engine.

    An engine that knows of tools ends an answer with a call, which no two would do at the same token.
    """
    system, *rest = request.messages
    told = Message("system", f"{instruction(request.tools)}\n\n{system.text}")
    return told_plainly(replace(request, messages=[told, *rest]))


def _call(request: ChatRequest, turn: int) -> ToolCallDelta:
    """Return the call of a turn: another place for each agent, so that no result is like another."""
    task = request.messages[-1 if turn == 0 else 1].text.split(":")[0]
    return ToolCallDelta(0, f"call_{turn}", "look_up", json.dumps({"place": f"{task} {turn}"}))


@tool(effect="none")
async def look_up(place: str) -> str:
    """Look up what is known of a place: what it has, who lives there, and what to see."""
    return words(place, RESULT_WORDS)


@tool(effect="none")
async def weather(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
    """Tell the weather of a city for the next days."""
    return words(f"{city} {days} {unit}", RESULT_WORDS)


@tool(effect="none")
async def convert(amount: float, source: str, target: str) -> str:
    """Convert an amount of money from one currency to another."""
    return f"{amount} {source} in {target}"


def task_of(agent: int, num_turns: int) -> Task:
    """Return an agent's task, with the system prompt that all share."""
    arguments: JsonObject = {
        "tools": ["look_up", "weather", "convert"],
        "steps": num_turns,
        "system": words("system", SYSTEM_WORDS),
    }
    return Task(text=f"Agent {agent}: {words(f'task {agent}', TASK_WORDS)}", arguments=arguments)


async def measured(backend: Backend, num_agents: int, num_turns: int, num_tokens: int) -> Counts:
    """Run all agents at once; return what they used."""
    warm = ChatRequest(messages=[Message("user", "hello")], sampling=SamplingParams(max_tokens=2))
    await collect(backend.chat(warm))
    fixed = FixedTurns(backend, num_turns, num_tokens)
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder))
        async with Fleet(fixed, [AssistantAgent()], [look_up, weather, convert], journal=journal) as fleet:
            start, cpu = time.perf_counter(), seconds_of(os.getpid())
            runs: list[Coroutine[None, None, object]] = [
                fleet.run_agent("assistant", task_of(agent, num_turns)) for agent in range(num_agents)
            ]
            await asyncio.gather(*runs)
            fixed.counts.seconds, fixed.counts.cpu_seconds = time.perf_counter() - start, seconds_of(os.getpid()) - cpu
        journal.close()
    await backend.close()
    return fixed.counts


def main() -> None:
    """Measure one backend and print what was counted, as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("chain")
    parser.add_argument("settings", nargs="*", help="settings by name, such as engine.max_num_seqs=100")
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options = parser.parse_args()
    overrides = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.settings)}
    settings = load_settings(overrides=overrides).settings
    backend = make_chain(settings, make_host(settings), [options.chain])
    counts = asyncio.run(measured(backend, options.agents, options.turns, options.tokens))
    print(msgspec.json.encode(counts).decode())


if __name__ == "__main__":
    main()
