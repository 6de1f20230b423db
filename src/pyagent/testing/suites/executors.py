"""What every executor of agents, and every executor of ranks, must do.

    class TestMine(ExecutorConformance):
        def make(self):
            return make_executor(Settings())

The agents of the suite are in this module, so that other processes can import them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import cast

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.executor import Executor
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import JsonObject
from pyagent.core.runners.rank_executor import RankExecutor, RankProcess
from pyagent.testing.backends import EchoBackend
from pyagent.testing.suites.checks import run

_END_SECONDS = 5.0
_RANK_SECONDS = 20.0


class Worker:
    """Does with its run what the first word of its task says."""

    name = "worker"
    description = "Does what its task says."

    async def run(self, context: Context, task: Task) -> object:
        """Return the task's words, refuse, ask the model, call a tool, or stay for long."""
        word, _, rest = task.text.partition(" ")
        match word:
            case "refuse":
                raise RequestError(rest, param="words")
            case "ask":
                return await context.generate(rest)
            case "call":
                return await context.call_tool("double", {"number": int(rest)})
            case "stay":
                await asyncio.sleep(60)
            case _:
                pass
        return {"words": rest.split(), "agent": context.agent}


async def _double(arguments: JsonObject) -> int:
    return 2 * cast("int", arguments["number"])


DOUBLE = FleetTool("double", "Doubles a number.", {"properties": {"number": {"type": "integer"}}}, _double)


class ExecutorConformance:
    """Derive from it, and define `make`."""

    def make(self) -> Executor:
        """Return a new executor."""
        raise NotImplementedError

    def test_result_comes_back(self) -> None:
        """What an agent returns is the run's result, equal to what it is in this process."""
        assert self._result("say three small words") == {"words": ["three", "small", "words"], "agent": "worker"}

    def test_error_comes_out_as_it_is(self) -> None:
        """What an agent raises ends the run: the same type, text and parameter."""
        with pytest.raises(RequestError, match="no such words") as caught:
            self._result("refuse no such words")
        assert caught.value.param == "words", "the error's fields are lost"

    def test_context_asks_the_run(self) -> None:
        """An agent asks the run's model and calls its tools, wherever it works."""
        assert self._result("ask hello") == "hello"
        assert self._result("call 21") == 42

    def test_agents_at_once_do_not_mix(self) -> None:
        """Several agents work at the same time, each for its own run."""

        async def work(fleet: Fleet) -> list[object]:
            return await asyncio.gather(*(fleet.run_agent("worker", f"ask {number}") for number in range(8)))

        assert self._with_fleet(work) == [str(number) for number in range(8)]

    def test_cancelling_ends_the_agent(self) -> None:
        """A run that is cancelled ends within five seconds, and the executor runs the next agent."""

        async def work(fleet: Fleet) -> object:
            task = asyncio.create_task(fleet.run_agent("worker", "stay here"))
            await asyncio.wait([task], timeout=0.5)
            started = time.monotonic()
            task.cancel()
            await asyncio.wait([task])
            assert time.monotonic() - started < _END_SECONDS, "the agent went on after it was cancelled"
            return await fleet.run_agent("worker", "ask again")

        assert self._with_fleet(work) == "again"

    def test_close_is_safe_twice(self) -> None:
        """Closing twice is no error, used or not."""

        async def work() -> None:
            for is_used in (False, True):
                executor = self.make()
                if is_used:
                    await Fleet(EchoBackend(), [Worker()], executor=executor).run_agent("worker", "say it")
                await executor.close()
                await executor.close()

        run(work())

    def _result(self, text: str) -> object:
        async def work(fleet: Fleet) -> object:
            return await fleet.run_agent("worker", text)

        return self._with_fleet(work)

    def _with_fleet(self, work: Callable[[Fleet], Awaitable[object]]) -> object:
        async def main() -> object:
            async with Fleet(EchoBackend(), [Worker()], [DOUBLE], executor=self.make()) as fleet:
                return await work(fleet)

        return run(main())


class RankExecutorConformance:
    """Derive from it, and define `make`. The ranks that it starts are told nonsense, and end by themselves."""

    def make(self) -> RankExecutor:
        """Return a new executor."""
        raise NotImplementedError

    def test_devices_are_given_or_not(self) -> None:
        """`gives_devices` is True or False."""
        given = cast("object", self.make().gives_devices)
        assert isinstance(given, bool), f"`gives_devices` is {given!r}"

    def test_each_rank_is_a_process_of_its_own(self) -> None:
        """One process for each, with numbers of their own; none for none."""
        assert list(self.make().start([])) == []
        with self._started() as ranks:
            numbers = {rank.process_id for rank in ranks}
            assert len(numbers) == len(ranks) == 2

    def test_rank_that_fails_ends_in_words(self) -> None:
        """`wait` returns None as long as it runs, and then says how it ended, again when asked again."""
        with self._started() as ranks:
            for rank in ranks:
                told = rank.wait(_RANK_SECONDS)
                assert isinstance(told, str), f"a rank that was told nonsense has not ended in words: {told!r}"
                assert told
                assert rank.wait(0) == told

    def test_wait_gives_up_in_time(self) -> None:
        """`wait(0)` returns at once, whether the rank has ended or not."""
        with self._started() as ranks:
            started = time.monotonic()
            for rank in ranks:
                rank.wait(0)
            assert time.monotonic() - started < 1.0, "`wait(0)` waits"

    def test_kill_is_safe_twice(self) -> None:
        """`kill` ends a rank, also one that has ended."""
        with self._started() as ranks:
            for rank in ranks:
                rank.kill()
                assert rank.wait(_RANK_SECONDS), "it was killed and goes on"
                rank.kill()

    @contextmanager
    def _started(self) -> Generator[list[RankProcess]]:
        ranks = list(self.make().start([b"nonsense", b""]))
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(_RANK_SECONDS)
