"""The fleet as users get it: settings, plugins, chain, journal and agents together."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pyagent
from pyagent.assembly import make_backend, make_chain, make_host, make_journal
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, DeadlineError, PluginError, RequestError
from pyagent.core.fleet.agent import Task, describe
from pyagent.core.fleet.events import ModelCalled, RouteChosen, RunFailed, RunFinished
from pyagent.core.fleet.steps import Step
from pyagent.core.hooks import hookimpl
from pyagent.core.settings import Settings
from pyagent.testing import Reply, ScriptedBackend


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(overrides={"paths.data": str(tmp_path)}).settings


def test_built_in_agents_come_through_plugins(settings: Settings) -> None:
    """Four agents and their tools are there after an install, each with a description and its types."""
    host = make_host(settings)
    agents = host.agents()
    assert {"math", "code-health", "summarize", "reasoning"} <= set(agents)
    assert {"calculator", "code_health"} <= set(host.tools())
    info = {name: describe(agent) for name, agent in agents.items()}
    assert all(row.description and row.arguments and row.output for name, row in info.items() if name != "haiku")
    assert "derivative" in str(info["math"].description)


def test_importing_agents_brings_no_sympy() -> None:
    """Listing the agents imports neither sympy nor torch: they load when something is computed."""
    code = (
        "import sys; from pyagent.assembly import make_host; from pyagent.core.settings import Settings;"
        "make_host(Settings()).agents(); assert not {'sympy', 'torch', 'pypdf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_mixed_job_runs_in_one_journalled_run(settings: Settings, tmp_path: Path) -> None:
    """An exact sum, an audit of a repository and a summary of both are one run, kept on disk and replayed."""
    (tmp_path / "code.py").write_text("def one(x):\n    return 1 if x else 2\n")
    steps = [
        Step(name="sum", task=Task(text="17*23 + sqrt(2)")),
        Step(name="audit", agent="code-health", task=Task(text=str(tmp_path))),
        Step(name="report", agent="summarize", task=Task(text="Summarize"), after=("sum", "audit")),
    ]

    async def main() -> None:
        async with pyagent.Fleet(settings, backend=ScriptedBackend(["All is well."])) as fleet:
            events = [event async for event in fleet.run(steps)]
            last = events[-1]
            assert isinstance(last, RunFinished)
            assert str(last.output) == "All is well."
            prompt = next(event for event in events if isinstance(event, ModelCalled)).messages[-1].text
            assert "391 + sqrt(2)" in prompt
            assert "one" in prompt
            (row,) = make_journal(settings).runs()
            assert (row.run, row.state) == (last.run, "done")
            replayed = [type(record.event) for record in make_journal(settings).replay(last.run)]
            assert replayed.count(RouteChosen) == 3
            assert replayed[-1] is RunFinished

    asyncio.run(main())


def test_unknown_backend_names_the_nearest(settings: Settings) -> None:
    """A chain entry no plugin knows is refused with the nearest scheme there is."""
    host = make_host(settings)
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        make_backend("nativ:smollm2", settings, host)
    assert make_chain(settings, host).names == ["native:smollm2:135m"]


class _BrokenPlugin:
    @hookimpl
    def pyagent_register_backends(self) -> dict[str, object]:
        def make(link: object, settings: object) -> object:
            raise OSError("no such device")

        return {"broken": make}


def test_link_of_a_broken_plugin_is_left_out(settings: Settings) -> None:
    """A chain goes on without the link its plugin cannot make; a chain of nothing else says what is wrong."""
    host = make_host(settings)
    host.register(_BrokenPlugin(), "broken")
    assert [link.name for link in make_chain(settings, host, ["broken", "native"]).links] == ["native:smollm2:135m"]
    with pytest.raises(PluginError, match="no such device"):
        make_chain(settings, host, ["broken"])


def test_disabled_agent_is_not_there(tmp_path: Path) -> None:
    """An agent disabled in the settings cannot be called."""
    overrides = {"paths.data": str(tmp_path), "plugins.disable": ["math"]}
    fleet = pyagent.Fleet(load_settings(overrides=overrides).settings, backend=ScriptedBackend([]))
    with pytest.raises(RequestError, match="no agent 'math'"):
        asyncio.run(fleet.run_agent("math", "1+1"))


def test_backend_given_stays_open(settings: Settings) -> None:
    """A backend handed in is its owner's to close."""

    async def main() -> None:
        backend = ScriptedBackend([])
        async with pyagent.Fleet(settings, backend=backend):
            pass
        assert not backend.is_closed

    asyncio.run(main())


_SLOW = """
import asyncio, sys
from pathlib import Path
import pyagent
from pyagent.core.config import load_settings
from pyagent.testing import Reply, ScriptedBackend
async def main():
    settings = load_settings(overrides={"paths.data": sys.argv[1]}).settings
    backend = ScriptedBackend(lambda _: Reply(text="a " * 100000, delay_seconds=0.01))
    async with pyagent.Fleet(settings, backend=backend) as fleet:
        async for event in fleet.run("why is the sky blue?", agent="reasoning"):
            print(event.run, flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_run_leaves_a_valid_journal(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl+C in mid-answer ends the program at once and is journalled; kill -9 leaves an unfinished run."""
    command = [sys.executable, "-c", _SLOW, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    run = [process.stdout.readline().strip() for _ in range(10)][-1]
    os.kill(process.pid, how)
    process.wait(timeout=60)  # one second on an idle machine; the answer takes a thousand
    process.stdout.close()
    journal = make_journal(load_settings(overrides={"paths.data": str(tmp_path)}).settings)
    records = list(journal.replay(run))
    assert isinstance(records[-1].event, RunFailed) is (how == signal.SIGINT)
    assert journal.runs()[0].state == ("cancelled" if how == signal.SIGINT else "unfinished")
    assert journal.read(run).is_whole


def test_deadline_ends_a_slow_answer(settings: Settings) -> None:
    """A model slower than the caller's deadline ends in a deadline error, and the stream is closed."""

    async def main() -> None:
        backend = ScriptedBackend(lambda _: Reply(text="a b c", delay_seconds=5))
        async with pyagent.Fleet(settings, backend=backend) as fleet:
            with pytest.raises(DeadlineError):
                await fleet.run_agent("reasoning", "why?", timeout_seconds=1.0)
        assert backend.num_aborted == 1

    asyncio.run(main())
