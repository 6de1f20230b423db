"""The fleet and the cache talk: what hints keep in a memory too small for everything, and what they let go."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from pyagent.core.backends import collect
from pyagent.core.errors import CapacityError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import ModelCalled
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest, Hint, Message, SamplingParams
from pyagent.core.prompt_cache import CacheQueryResult, ExplainPrompt, ModelCache, PinPrompt, UnpinPrompt, ViewCache
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions

BLOCK_BYTES = 256 * 16  # of the tiny model, in f16
NUM_BLOCKS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SYSTEM = "You are at the user's system, and it is on, and the user is at ease. " * 3


def backend_of(path: Path, *, takes_hints: bool = True) -> NativeBackend:
    cpu = RunnerOptions(threads=1, kv_bytes=NUM_BLOCKS * BLOCK_BYTES)
    return NativeBackend.of("tiny", lambda: path, EngineOptions(cpu, takes_hints=takes_hints))


async def noise(backend: NativeBackend, num_requests: int = 12) -> None:
    """Strangers' prompts, together several times what the memory holds."""
    for number in range(num_requests):
        text = f"{number} " + "and the user is at it again, " * 5
        await collect(backend.chat(ChatRequest(messages=[Message("user", text)], sampling=GREEDY)))


async def normalized(backend: NativeBackend) -> ModelCache:
    """The cache once all hints given so far are taken, and no step under way holds what has ended."""
    await asyncio.wrap_future(backend.engine._hints.submit(lambda: None))  # type: ignore[attr-defined]
    while (view := (await backend.query_cache(ViewCache())).models[0]).pages.used_pages:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return view


class Nothing(msgspec.Struct):
    pass


@pytest.mark.parametrize("takes_hints", [True, False])
def test_agent_that_waits_for_its_tool_keeps_its_kv(tiny_model_path: Path, takes_hints: bool) -> None:
    """While an agent's tool runs, strangers fill the memory: with hints the agent goes on as if they had not come."""
    backend = backend_of(tiny_model_path, takes_hints=takes_hints)

    async def slow(_: Nothing) -> str:
        await normalized(backend)
        await noise(backend)
        return "done"

    class Waiter:
        name = "waiter"
        description = "waits"

        async def run(self, context: Context, task: Task) -> str:
            messages = [Message("system", SYSTEM), Message("user", task.text)]
            first = await context.generate(messages, sampling=GREEDY)
            await context.call_tool("slow", Nothing())
            messages += [Message("assistant", first), Message("user", "and now?")]
            return await context.generate(messages, sampling=GREEDY)

    async def work() -> list[ModelCalled]:
        fleet = Fleet(backend, [Waiter()], [FleetTool("slow", "takes its time", Nothing, slow)])
        async with aclosing(fleet.run("wait", agent="waiter")) as events:
            calls = [event async for event in events if isinstance(event, ModelCalled)]
        await normalized(backend)
        await backend.close()
        return calls

    first, second = asyncio.run(work())
    num_log = first.usage.total_tokens
    report = second.usage.cache
    assert report is not None
    assert report.log_tokens == num_log
    # The KV of the last token drawn was never needed. What is left without hints all prompts begin with.
    assert report.cached_tokens == (num_log - 1 if takes_hints else 1)
    assert (report.miss is None) == takes_hints
    if report.miss is not None:
        assert report.miss.reason == "evicted"


def test_finished_agents_private_turns_go_first(tiny_model_path: Path) -> None:
    """What a finished run computed goes before what came earlier, but for the system text that others begin with."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        lead = [Message("system", SYSTEM)]
        for name in ("kept", "done"):
            messages = [*lead, Message("user", f"{name}: " + "is it at the user? " * 6)]
            await collect(backend.chat(ChatRequest(messages=messages, sampling=GREEDY, session=name)))
        backend.hint(Hint(kind="demote", session="done", messages=lead))
        view = await normalized(backend)
        states = {name: prompt.state for prompt in view.prompts for name in prompt.sessions}
        assert states == {"kept": "cached", "done": "demoted"}
        lead_blocks = view.prompts[0].num_tokens // 16 - view.pages.demoted_pages
        assert lead_blocks * 16 > 100  # the system text's
        await backend.close()

    asyncio.run(work())


def test_released_run_keeps_nothing_back(tiny_model_path: Path) -> None:
    """What was retained for a run is ordinary when the run is over."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        messages = [Message("system", SYSTEM), Message("user", "is it?")]
        await collect(backend.chat(ChatRequest(messages=messages, sampling=GREEDY, session="r/a")))
        backend.hint(Hint(kind="retain", session="r/a"))
        backend.hint(Hint(kind="retain", run="r", messages=messages[:1]))
        assert (await normalized(backend)).pages.retained_pages > 5
        backend.hint(Hint(kind="release", run="r"))
        assert (await normalized(backend)).pages.retained_pages == 0
        await backend.close()

    asyncio.run(work())


def test_hints_about_the_unknown_are_lost(tiny_model_path: Path) -> None:
    """Sessions, runs and messages nobody has seen change nothing, and neither do hints before a model is loaded."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        for _ in range(2):
            for kind in ("retain", "demote", "release"):
                backend.hint(Hint(kind=kind, session="nobody"))
                backend.hint(Hint(kind=kind, run="nothing", messages=[Message("system", "?")]))
                backend.hint(Hint(kind=kind))
            await backend.load()
        view = await normalized(backend)
        assert (view.pages.retained_pages, view.pages.demoted_pages, view.pages.pinned_pages) == (0, 0, 0)
        await backend.close()

    asyncio.run(work())


def test_pinned_prompt_outlives_all_else(tiny_model_path: Path) -> None:
    """A pin computes the beginning, keeps it while strangers pass, and ends; too large a pin is refused."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        asked = ChatRequest(messages=[Message("system", SYSTEM)])
        pinned = await backend.query_cache(PinPrompt("mine", asked))
        assert pinned.num_tokens > 100
        await noise(backend)
        request = ChatRequest(messages=[*asked.messages, Message("user", "is it?")])
        explained: CacheQueryResult = await backend.query_cache(ExplainPrompt(request))
        assert explained.report is not None
        assert explained.report.cached_tokens == pinned.num_tokens
        view = (await backend.query_cache(ViewCache())).models[0]
        assert view.pins == {"mine": pinned.num_tokens}
        assert view.pages.pinned_pages * 16 == pinned.num_tokens
        more = ChatRequest(messages=[Message("system", "other " + SYSTEM * 2)])
        with pytest.raises(CapacityError, match="pinning 'more'"):
            await backend.query_cache(PinPrompt("more", more))
        assert (await backend.query_cache(UnpinPrompt("mine"))).num_tokens == pinned.num_tokens
        assert (await backend.query_cache(UnpinPrompt("mine"))).num_tokens == 0
        await noise(backend)
        explained = await backend.query_cache(ExplainPrompt(request))
        assert explained.report is not None
        assert explained.report.cached_tokens == 1  # what all prompts of the template begin with
        assert explained.report.miss is not None
        await backend.close()

    asyncio.run(work())
