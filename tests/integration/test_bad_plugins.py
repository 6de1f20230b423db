"""Bad plugins of every kind installed together: each command gives its right answer, and each plugin is named."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.installed import write_distribution

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

AGENT = """
    import asyncio, time
    from pyagent.plugin import hookimpl

    class Agent:
        name = {name!r}
        description = "Does {name}."

        def score(self, task):
            return 0.0

        async def run(self, context, task):
            return "never asked"

    {patch}

    @hookimpl
    def pyagent_register_agents():
        return [Agent()]
"""
BACKEND = """
    import asyncio
    from pyagent.plugin import ChatDelta, Health, ModelInfo, hookimpl

    class Backend:
        def __init__(self, name):
            self.name = name
        async def models(self):
            return [ModelInfo(id=self.name, backend=self.name)]
        async def chat(self, request):
            yield ChatDelta(content="fine", finish_reason="stop", model="m", backend=self.name)
        async def embed(self, request):
            raise NotImplementedError
        async def health(self):
            return Health(is_ready=True)
        async def close(self):
            pass

    def make(link, settings):
        return Backend(str(link))

    {patch}

    @hookimpl
    def pyagent_register_backends():
        return {{{name!r}: make}}
"""
POLICY = """
    import threading
    from pyagent.plugin import hookimpl

    class Policy:
        def __init__(self):
            self.waiting = []
        def add(self, request, now):
            self.waiting.append(request)
        def remove(self, request):
            self.waiting.remove(request)
        def ordered(self, now):
            {ordered}
        def served(self, request, num_prompt, num_output_tokens, now):
            pass
        def finished(self, request, now):
            pass
        def victim(self, running, now):
            return running[-1]

    @hookimpl
    def pyagent_register_queue_policies():
        return {{{name!r}: lambda options: Policy()}}
"""


def agent(name: str, patch: str = "") -> str:
    return AGENT.format(name=name, patch=textwrap.indent(textwrap.dedent(patch), "    ").strip())


def backend(name: str, patch: str = "") -> str:
    return BACKEND.format(name=name, patch=textwrap.indent(textwrap.dedent(patch), "    ").strip())


def method(code: str) -> str:
    """A patch that replaces a method of the agent or the backend."""
    kind = "Backend" if "request" in code or "self.name" in code or code.startswith("B:") else "Agent"
    code = code.removeprefix("B:")
    name = code.partition("(")[0].rpartition(" ")[2]
    return f"{code}\n{kind}.{name} = {name}"


QUARANTINED = {
    "import-raises": ("agents", "1 / 0"),
    "import-exits": ("agents", "import sys; sys.exit(3)"),
    "import-odd": ("agents", "class Odd(BaseException): pass\nraise Odd"),
    "hook-raises": (
        "agents",
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): raise OSError('no disk')",
    ),
    "hook-exits": (
        "agents",
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): raise SystemExit(2)",
    ),
    "hook-nonsense": (
        "agents",
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): return {1: 2}",
    ),
    "hook-signature": (
        "agents",
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(fleet, more): return []",
    ),
    "sync-run": ("agents", agent("sync-run", method("def run(self, context, task): return 'x'"))),
    "short-run": ("agents", agent("short-run", method("async def run(self, task): return 'x'"))),
    "no-description": ("agents", agent("no-description", "Agent.description = None")),
    "circle": ("agents", agent("circle", "Agent.needs = ('circle',)")),
    "unknown-need": ("agents", agent("unknown-need", "Agent.needs = ('nobody-has-this',)")),
    "usurper": ("agents", agent("summarize", "Agent.needs = ('summarize',)")),  # the one whose name it takes
    "twice-named": ("agents", agent("a") + "\n    pyagent_register_agents = hookimpl(lambda: [Agent(), Agent()])"),
    "tool-nonsense": (
        "tools",
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_tools(): return ['hammer']",
    ),
    "no-noun": ("agnts", agent("no-noun")),
}
"""Kept out when they are loaded, each named with the reason by `plugins list`."""

FAULTY_AGENTS = {
    "score-raises": method("def score(self, task): raise ValueError('no idea')"),
    "score-exits": method("def score(self, task): raise SystemExit(1)"),
    "score-hangs": method("def score(self, task): time.sleep(600)"),
    "score-nan": method("def score(self, task): return float('nan')"),
    "score-text": method("def score(self, task): return 'high'"),
    "run-exits": method("async def run(self, context, task): raise SystemExit(5)"),
    "run-cancels": method("async def run(self, context, task): raise asyncio.CancelledError"),
    "run-nonsense": method("async def run(self, context, task) -> int: return 'seven'"),
    "run-blocks": method("async def run(self, context, task): time.sleep(4)"),
    "run-waits": method("async def run(self, context, task): await asyncio.to_thread(time.sleep, 600)"),
    "run-swallows": """
async def run(self, context, task):
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass
Agent.run = run
""",
    "close-raises": method("async def close(self): raise RuntimeError('stuck')"),
    "close-exits": method("async def close(self): raise SystemExit(1)"),
    "close-hangs": method("async def close(self): await asyncio.sleep(600)"),
}
"""Agents that are found out only when they are asked."""

FAULTY_BACKENDS = {
    "make-raises": "def make(link, settings): raise KeyError('x')",
    "make-exits": "def make(link, settings): raise SystemExit(1)",
    "make-nonsense": "def make(link, settings): return 3",
    "chat-exits": method("async def chat(self, request):\n    raise SystemExit(1)\n    yield"),
    "chat-nonsense": method("async def chat(self, request):\n    yield 'words'"),
    "chat-numbers": method("async def chat(self, request):\n    yield ChatDelta(content=5)"),
    "chat-list": method("async def chat(self, request):\n    return ['words']"),
    "models-exit": method("B:async def models(self): raise SystemExit(1)"),
    "shut-raises": method("B:async def close(self): raise RuntimeError('stuck')"),
    "shut-exits": method("B:async def close(self): raise SystemExit(1)"),
}
"""Backends that stand before a good one in the chain."""

FAULTY_POLICIES = {
    "order-nothing": "return iter(())",
    "order-raises": "raise RuntimeError('lost')",
    "order-exits": "raise SystemExit(1)",
    "order-hangs": "threading.Event().wait(600)",
}


@dataclass(frozen=True)
class Place:
    """A folder with the plugins, a home and settings of its own."""

    home: Path
    site: Path
    chain: str

    def pyagent(self, *arguments: str, expects: int = 0, config: str = "") -> subprocess.CompletedProcess[str]:
        (self.home / "pyagent.toml").write_text(config or f'chain = {self.chain}\n[plugins]\norder = ["usurper"]\n')
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH"}}
        environment = kept | {
            "PYTHONPATH": os.pathsep.join([str(self.site), kept.get("PYTHONPATH", "")]),
            **{name: str(self.home / name) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")},
            "PYTHONUTF8": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from pyagent.cli.main import main; sys.exit(main())", *arguments],
            env=environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == expects, (arguments, done.returncode, done.stdout[-3000:], done.stderr[-6000:])
        assert "Traceback" not in done.stdout
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Every bad plugin installed, and one good backend."""
    folder = tmp_path_factory.mktemp("bad")
    home, site = folder / "home", folder / "site"
    home.mkdir()
    site.mkdir()
    plugins = dict(QUARANTINED)
    plugins |= {name: ("agents", agent(name, patch)) for name, patch in FAULTY_AGENTS.items()}
    plugins |= {name: ("backends", backend(name, patch)) for name, patch in FAULTY_BACKENDS.items()}
    plugins |= {
        name: ("queue_policies", POLICY.format(name=name, ordered=ordered)) for name, ordered in FAULTY_POLICIES.items()
    }
    plugins["good"] = ("backends", backend("good"))
    plugins["doubles"] = ("agents", agent("score-nan"))
    for name, (noun, source) in plugins.items():
        module = "bad_" + name.replace("-", "_")
        write_distribution(site, name, f"{name}.{noun} = {module}")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
    return Place(home, site, json.dumps([*FAULTY_BACKENDS, "good"]))


def test_there_are_enough_of_them() -> None:
    """Twenty was the promise."""
    assert len(QUARANTINED | FAULTY_AGENTS | FAULTY_BACKENDS | FAULTY_POLICIES) >= 20


def test_plugins_list_names_each(place: Place) -> None:
    """Those that are broken at load are quarantined with a reason, the others are listed, the clash is told."""
    rows = json.loads(place.pyagent("plugins", "list", "--json").stdout)
    rows = {row["name"]: row for row in rows}
    for name in QUARANTINED:
        assert rows[name]["state"] == "quarantined", rows[name]
        assert rows[name]["reason"]
    for name in [*FAULTY_AGENTS, *FAULTY_BACKENDS, *FAULTY_POLICIES, "good", "math", "native"]:
        assert rows[name]["state"] == "loaded", rows[name]
    assert "'score-nan': doubles comes before score-nan" in place.pyagent("plugins", "list").stdout


@pytest.mark.parametrize(
    "command",
    [("agent",), ("doctor",), ("chain", "explain", "hi"), ("config", "show"), ("models", "list"), ("runs", "list")],
)
def test_looking_commands_work_beside_bad_plugins(place: Place, command: tuple[str, ...]) -> None:
    """Commands that look at things end well, with what they show."""
    shown = place.pyagent(*command).stdout
    expected = {"agent": "reasoning", "doctor": "import-exits", "chain": "good", "config": "chain", "models": "smollm2"}
    assert expected.get(command[0], "") in shown


def test_named_agent_answers_beside_bad_plugins(place: Place) -> None:
    """`agent math` gives its sum, and names the agents and backends that could not be closed."""
    done = place.pyagent("agent", "math", "2+2")
    assert "4" in done.stdout
    for name in ("close-raises", "close-exits", "close-hangs"):
        assert f"the agent {name} cannot be closed" in done.stderr


def test_routed_task_is_answered_beside_bad_plugins(place: Place) -> None:
    """`run` finds the right agent, and names those whose score is broken."""
    done = place.pyagent("run", "17*23 + 1")
    assert "392" in done.stdout
    for name in ("score-raises", "score-exits", "score-hangs", "score-text"):
        assert f"the agent {name} is left out of the choice" in done.stderr


def test_chain_reaches_the_good_backend_past_the_bad(place: Place) -> None:
    """A question is answered by the last link, whatever those before it raise or yield."""
    trials = json.loads(place.pyagent("chain", "test", "--json", expects=1).stdout)
    assert trials[-1]["is_well"], trials[-1]
    found = {trial["backend"]: trial["found"] for trial in trials if not trial["is_well"]}
    for name in FAULTY_BACKENDS:
        if name.startswith(("make", "chat")):
            assert found[name], name
    config = f"chain = {json.dumps([name for name in FAULTY_BACKENDS if name[:4] in ('make', 'chat')] + ['good'])}\n"
    config += '[plugins]\ndisable = ["close-hangs"]\n'
    done = place.pyagent("agent", "reasoning", "How are you?", config=config)
    assert "fine" in done.stdout


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("run-exits", "the agent run-exits raised SystemExit: 5"),
        ("run-cancels", "the agent run-cancels raised CancelledError"),
        ("run-nonsense", "run-nonsense promises int and gave str"),
        ("run-blocks", "the deadline passed while waiting for the agent run-blocks"),
        ("run-waits", "the deadline passed while waiting for the agent run-waits"),
        ("run-swallows", "the deadline passed while waiting for the agent run-swallows"),
    ],
)
def test_faulty_agent_fails_by_name_when_it_is_asked(place: Place, name: str, complaint: str) -> None:
    """Asked by name, a faulty agent ends its run with an error that names it, in time, and the program ends."""
    config = 'chain = ["good"]\n[budget.run]\nseconds = 1\n[plugins]\ndisable = ["close-hangs"]\n'
    done = place.pyagent("agent", name, "hi", expects=1, config=config)
    assert complaint in done.stderr
    if name == "run-blocks":
        assert "the agent run-blocks has blocked the event loop" in done.stderr


@pytest.mark.parametrize("policy", FAULTY_POLICIES)
def test_policy_is_replaced_beside_the_engine(place: Place, policy: str, tiny_model_path: Path) -> None:
    """The engine answers although its queue's policy offers nothing, raises or hangs, and the policy is named."""
    config = f'chain = ["native:{tiny_model_path}"]\n[engine.queues.default]\npolicy = "{policy}"\n'
    done = place.pyagent("chain", "test", config=config)
    assert "✓" in done.stdout
    assert f"its policy {policy} failed" in done.stderr


class Ends:
    """An agent whose library ends the program, in its own task and in one it begins."""

    name = "ends"
    description = "Ends the program."

    async def run(self, context: Context, task: Task) -> object:
        async def ends() -> None:
            sys.exit(7)

        await asyncio.gather(ends(), asyncio.sleep(60)) if "gather" in task.text else await ends()


def test_server_outlives_an_agent_that_ends_the_program() -> None:
    """Over HTTP, an agent that calls `sys.exit` is an error of its request, and the next request is answered."""
    backend = ScriptedBackend(lambda request: "fine")
    agents = AgentBackend(lambda: Fleet(backend, [Ends()]))  # type: ignore[arg-type, return-value]
    with serve(create_app(backend, agents=agents)) as url:

        def ask(model: str, text: str) -> httpx.Response:
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
            return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

        for text in ("now", "gather"):
            failed = ask("agent:ends", text)
            assert failed.status_code >= 500
            assert "the agent ends raised SystemExit" in failed.text
        assert ask("scripted", "hi").json()["choices"][0]["message"]["content"] == "fine"
