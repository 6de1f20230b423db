import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from pyagent_turns import Turns, make_turns

from pyagent.plugin import ConfigError, Context, Settings, Task
from pyagent.testing import ExecutorConformance


class TestTurns(ExecutorConformance):
    def make(self) -> Turns:
        return Turns(2)


class Counting:
    """Notes how many of its kind ran at a time."""

    name = "counting"
    description = "Counts."
    num_running = most = 0

    async def run(self, context: Context, task: Task) -> str:
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        await asyncio.sleep(0.01)
        self.num_running -= 1
        return "done"


def test_a_few_run_at_a_time() -> None:
    """Ten agents, two at a time; one that is cancelled while it waits leaves the others their turns."""
    agent, turns = Counting(), Turns(2)
    context = cast("Context", SimpleNamespace(depth=0))

    async def main() -> list[object]:
        runs = [asyncio.ensure_future(turns.run(agent, context, Task(text="go"))) for _ in range(10)]
        await asyncio.sleep(0.005)
        runs[5].cancel()
        return list(await asyncio.gather(*runs, return_exceptions=True))

    assert asyncio.run(main()).count("done") == 9
    assert agent.most == 2


def test_a_wrong_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told with the variable's name."""
    monkeypatch.setenv("AGENT_TURNS", "none")
    with pytest.raises(ConfigError, match="AGENT_TURNS, got 'none'"):
        make_turns(Settings())
