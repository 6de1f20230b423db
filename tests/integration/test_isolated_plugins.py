"""Isolated plugins do what they declare and nothing else, and what they do wrong ends one run alone."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fleets import Custom, echo
from support.installed import find_first, write_distribution

from pyagent.assembly import make_host
from pyagent.cli.root import run
from pyagent.core.config import load_settings
from pyagent.core.errors import AgentError, PluginError, RequestError
from pyagent.core.fleet import scores as fleet_scores
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import RouteChosen
from pyagent.core.fleet.file_access import readable_path
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Plugins
from pyagent.infrastructure.isolation import plugin as isolated_plugin
from pyagent.infrastructure.isolation.capabilities import Capabilities, declared
from pyagent.infrastructure.isolation.jail import Network, kinds
from pyagent.infrastructure.isolation.scores import SECONDS, Scorer
from pyagent.testing import AgentConformance, EchoBackend, Played, ToolConformance, play

MODULE = """
import asyncio
import ctypes
import os
import resource
import socket
import subprocess
from typing import Any

import msgspec

from pyagent.plugin import Agent, Context, FleetTool, RequestError, Score, Task, hookimpl

pyagent_capabilities = {"read": [READ], "write": [WRITE], "network": NETWORK, "tools": ["double"],
                        "agents": ["reader", "odd", "summarize"]}


class Odd:
    name = "odd"
    description = "Does what its task says."
    needs = ("summarize",)

    def score(self, task: Task) -> object:
        word, _, rest = task.text.partition(" ")
        if word == "score-read":
            return Score(0.9, open(rest).read() + "\\n" + "y" * 1000)
        if word == "score-network":
            return socket.create_connection(("127.0.0.1", int(rest)), timeout=1) and 1.0
        if word == "score-write":
            return open(rest, "w") and 1.0
        if word == "score-late":
            while True:
                pass
        if word == "score-none":
            return None
        return float(rest) if word == "score" else 0.0

    async def run(self, context: Context, task: Task) -> object:
        word, _, rest = task.text.partition(" ")
        if word == "read":
            with open(rest) as file:
                return file.read()
        if word == "write":
            with open(rest, "w") as file:
                return file.write("written")
        if word == "remove":
            return os.remove(rest)
        if word == "connect":
            host, port = rest.split(":")
            return socket.create_connection((host, int(port)), timeout=3).recv(5).decode()
        if word == "spawn":
            return subprocess.run(["true"]).returncode
        if word == "native":
            libc = ctypes.CDLL(None, use_errno=True)
            calls = [libc.open(rest.encode(), 0), libc.socket(2, 1, 0), libc.socket(1, 1, 0), libc.fork()]
            return [*calls, libc.kill(os.getppid(), 0), libc.execv(b"/bin/true", None)]
        if word == "meddle":
            libc, limits, pair = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint64 * 2)(64, 64), (ctypes.c_int * 2)()
            parent, path = os.getppid(), rest.encode()
            return [
                libc.prlimit(parent, 7, limits, None),
                libc.setpriority(0, parent, 19),
                libc.sched_setaffinity(parent, 8, (ctypes.c_uint64 * 1)(1)),
                libc.chmod(path, 0o666),
                libc.chown(path, 1, 1),
                libc.truncate(path, 0),
                libc.utimensat(-100, path, None, 0),
                libc.setxattr(path, b"user.a", b"1", 1, 0),
                libc.inotify_init(),
                libc.memfd_create(b"a", 0),
                libc.msgget(0, 0o1600),
                libc.socketpair(1, 2, 0, pair),
                libc.socketpair(1, 5, 0, pair),
            ]
        if word == "go-around":
            libc = ctypes.CDLL(None, use_errno=True)
            address = bytes([2, 0, *int(rest).to_bytes(2), 127, 0, 0, 1]) + bytes(8)
            plain = libc.socket(2, 1, 0)
            hasty = libc.sendto(plain, b"hi", 2, 0x20000000, address, 16)
            return [plain >= 0, libc.socket(2, 1, 262), libc.socket(2, 3, 6), libc.connect(plain, address, 16), hasty]
        if word == "own":
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            os.sched_setaffinity(0, os.sched_getaffinity(0))
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if word == "loop":
            while True:
                pass
        if word == "sleep":
            await asyncio.sleep(60)
        if word == "eat":
            return len(bytearray(8 << 30))
        if word == "die":
            os._exit(3)
        if word == "crash":
            ctypes.string_at(0)
        if word == "babble":
            for number in range(3, 64):
                try:
                    os.write(number, b"x" * 4096)
                except OSError:
                    pass
            await asyncio.sleep(60)
        if word == "forge":
            text = ("x\\n\\x1b[31m" + "y" * 100_000).encode().decode("unicode_escape")
            forged = {
                "deep": {"type": "done", "value": b"\\x91" * 100_000},
                "long": {"type": "failed", "fault": {"kind": "AgentError", "text": text, "facts": {"agent": "odd"}}},
            }
            data = msgspec.msgpack.encode(forged.get(rest, {}))
            for number in range(3, 64):
                try:
                    os.write(number, (len(data) if forged.get(rest) else 1 << 31).to_bytes(4) + data)
                except OSError:
                    pass
            await asyncio.sleep(60)
        if word == "tools":
            return context.tools
        if word == "ask":
            return await context.generate(rest)
        if word == "stream":
            return [piece async for piece in context.stream(rest)]
        if word == "call":
            return await context.call_tool(rest, {"number": 21})
        if word == "offer":
            return (await context.complete("go", tools=[rest])).text
        if word == "spawn-agent":
            name, _, rest = rest.partition(" ")
            return await context.spawn(name, rest, max_tokens=50)
        if word == "go-on":
            context.progress("before")
            try:
                await context.spawn("other", rest)
            except RequestError as error:
                context.progress("after")
                return [str(error), await context.spawn("odd", rest)]
        if word == "hand-file":
            return await context.spawn("reader", Task(text="read", files=(rest,)))
        if word == "bomb":
            found = await asyncio.gather(*(context.spawn("odd", task.text) for _ in range(3)), return_exceptions=True)
            raise next(each for each in found if isinstance(each, BaseException))
        if word == "chain":
            return await context.chain()
        if word == "refuse":
            raise RequestError(rest, param="words")
        if word == "fail":
            raise ZeroDivisionError(rest)
        if word == "environment":
            return sorted(os.environ)
        if word == "odd-result":
            return object()
        context.progress("almost done")
        return {"said": rest}


async def shout(arguments: Any) -> str:
    return str(arguments["text"]).upper()


@hookimpl
def pyagent_register_agents() -> list[Agent]:
    return [Odd()]


@hookimpl
def pyagent_register_tools() -> list[FleetTool]:
    schema = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
    return [FleetTool("shout", "Shouts a text.", schema, shout, effect="none")]
"""


async def double(arguments: dict[str, Any]) -> int:
    return 2 * int(arguments["number"])


async def read_path(context: Context, task: Task) -> object:
    """Do what an agent does whose text names files, as `code-health`: read one, and say what it may use."""
    if task.text == "tokens":
        return context.budget.left_tokens
    return readable_path(task.text).read_text()


def tool(name: str) -> FleetTool:
    return FleetTool(name, "Doubles.", {"properties": {"number": {"type": "integer"}}}, double)


class World:
    """A user with the plugin `odd`, which is isolated, and a file that is none of its business."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, network: Sequence[str] = ()) -> None:
        self.folder = folder
        for name in ("site", "data", "out"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "data/notes.txt").write_text("a note")
        (folder / "secret.txt").write_text("a secret")
        write_distribution(folder / "site", "odd", "odd.agents = pyagent_odd\nodd.tools = pyagent_odd")
        text = MODULE.replace("READ", repr(str(folder / "data"))).replace("WRITE", repr(str(folder / "out")))
        (folder / "site/pyagent_odd.py").write_text(text.replace("NETWORK", repr(list(network))))
        find_first(monkeypatch, folder / "site")
        self.config = folder / "pyagent.toml"
        self.config.write_text(
            '[plugins]\nisolate = ["odd"]\nisolated_seconds = 20\nisolated_memory = "1GB"\n', encoding="utf-8"
        )
        self.host = make_host(load_settings(self.config).settings)

    def play(self, text: str, **more: Any) -> Played:
        tools = [tool("double"), tool("triple")]
        agents = [self.host.agents()["odd"], Custom("reader", read_path), Custom("other", read_path)]
        return play(text, agents=agents, agent="odd", model=EchoBackend(), tools=tools, **more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("isolated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("PYAGENT_PATHS__DATA", str(folder / "user-data"))
        patch.setenv("SECRET_KEY", "sk-1")
        yield World(folder, patch)
    assert "pyagent_odd" not in sys.modules, "its code ran in this process"


def test_an_isolated_plugin_works_with_what_it_declares(world: World) -> None:
    """It reads and writes its folders, asks the model, whole and in pieces, calls its tool, and shows progress."""
    data, out = world.folder / "data/notes.txt", world.folder / "out/new.txt"
    assert world.play(f"read {data}").result == "a note"
    assert world.play(f"write {out}").result == 7
    assert out.read_text() == "written"
    assert world.play("ask the time").result == "the time"
    assert world.play("stream one two").result == ["one", " two"]
    assert world.play("call double").result == 42
    played = world.play("say hello")
    assert played.result == {"said": "hello"}
    assert "almost done" in str(played.events)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("read {folder}/secret.txt", "did not declare to read"),
        pytest.param("read {folder}/data/../secret.txt", "did not declare to read", marks=pytest.mark.slow),
        ("read /etc/passwd", "did not declare to read '/etc/passwd'"),
        pytest.param("read {folder}/site/other.txt", "did not declare to read", marks=pytest.mark.slow),
        ("write {folder}/data/notes.txt", "did not declare to write"),
        pytest.param("remove {folder}/secret.txt", "did not declare to write", marks=pytest.mark.slow),
        ("connect 127.0.0.1:9", "did not declare to connect to '127.0.0.1'"),
        ("spawn", "did not declare to start processes"),
        ("call triple", "did not declare the tool 'triple'"),
        pytest.param("offer triple", "did not declare the tool 'triple'", marks=pytest.mark.slow),
        ("spawn-agent other go", "did not declare the agent 'other'"),
        ("hand-file {folder}/data/notes.txt", "the agents it spawns read no files"),
        pytest.param("chain", "may not ask its run for 'chain'", marks=pytest.mark.slow),
        ("eat", "more memory than it may use"),
        ("die", "the process of the plugin odd died: exit code 3"),
        pytest.param("crash", "the process of the plugin odd died: signal SIGSEGV", marks=pytest.mark.slow),
        pytest.param("babble", "the plugin odd", marks=pytest.mark.slow),
        pytest.param("fail on purpose", "the plugin odd failed: ZeroDivisionError: on purpose", marks=pytest.mark.slow),
        pytest.param("odd-result", "returned what cannot be told", marks=pytest.mark.slow),
    ],
)
def test_what_it_did_not_declare_is_refused_by_name(world: World, task: str, told: str) -> None:
    """Each is one line that names the plugin and what it did; the next run goes on."""
    (world.folder / "site/other.txt").write_text("other")
    error = world.play(task.format(folder=world.folder)).error
    assert isinstance(error, AgentError | RequestError)
    assert told in str(error)
    assert "odd" in str(error)
    assert "\n" not in str(error)
    assert (world.folder / "secret.txt").read_text() == "a secret"
    assert (world.folder / "data/notes.txt").read_text() == "a note"


@pytest.mark.skipif(set(kinds()) < {"landlock", "seccomp"}, reason="this kernel has not both Landlock and seccomp")
def test_native_code_is_refused_by_the_kernel(world: World) -> None:
    """What gets around Python's hooks opens no file, no socket, and begins no process; it signals none."""
    assert world.play(f"native {world.folder}/secret.txt").result == [-1] * 6
    assert world.play("native /proc/self/environ").result == [-1] * 6


@pytest.mark.skipif(set(kinds()) < {"landlock", "seccomp"}, reason="this kernel has not both Landlock and seccomp")
def test_native_code_meddles_with_nothing_outside(world: World) -> None:
    """Limits, priority and processors of the program, modes of any file, memory without a bound, sockets with a path.

    Landlock looks at none of these. What is the process's own it may still change.
    """
    assert world.play(f"meddle {world.folder}/secret.txt").result == [-1] * 13
    assert world.play("own").result == 64


def test_forged_messages_end_their_run_alone(world: World) -> None:
    """What is no value, is announced too long, or has a text that no terminal should see."""
    for word, told in (
        ("deep", "the plugin odd returned what is no value: maximum recursion depth"),
        ("huge", "the plugin odd announced a message of 2147483648 bytes"),
        ("long", "yyy"),
    ):
        error = world.play(f"forge {word}").error
        assert isinstance(error, AgentError)
        assert told in str(error)
        assert len(str(error)) <= 2_000
        assert str(error).isprintable()


def test_agent_sees_the_tools_that_it_declared(world: World) -> None:
    """Other tools of the run are not its to know."""
    assert world.play("tools").result == ["double"]


def test_loops_and_sleeps_end_at_the_bound(world: World) -> None:
    """At the plugin's bound of time, or at the run's; the process is gone then."""
    bounded = Plugins(isolate=["odd"], isolated_seconds=3)
    host = make_host(msgspec.structs.replace(load_settings(world.config).settings, plugins=bounded))
    for task in ("loop", "sleep"):
        error = play(task, agents=[host.agents()["odd"]], agent="odd", model=EchoBackend()).error
        assert "has not ended within 3 s" in str(error)
    assert world.play("say on").result == {"said": "on"}


def test_errors_and_environment(world: World) -> None:
    """An error of PyAgent's comes out as it is; the process sees no variable of the user's."""
    error = world.play("refuse no such words").error
    assert isinstance(error, RequestError)
    assert (str(error), error.param) == ("no such words", "words")
    names = world.play("environment").result
    assert isinstance(names, list)
    assert "SECRET_KEY" not in names


def test_network_that_is_declared_is_reached_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared host and port is connected to; another port, or host, is refused by name."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = server.getsockname()[1]
        world = World(tmp_path, monkeypatch, [f"127.0.0.1:{port}"])

        def greet() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"hello")

        thread = threading.Thread(target=greet)
        thread.start()
        assert world.play(f"connect 127.0.0.1:{port}").result == "hello"
        thread.join()
        refused = world.play(f"connect 127.0.0.1:{other.getsockname()[1]}").error
        assert "did not declare to connect to" in str(refused)
        if "seccomp" in kinds():  # MPTCP, raw sockets, and TCP that connects by sending, which Landlock does not see
            port = other.getsockname()[1]
            assert world.play(f"go-around {port}").result == [True, -1, -1, -1, -1]


def test_agents_that_it_declared_are_spawned_without_files(world: World) -> None:
    """They do what the task says within what the run allows, and read no file for it, whatever the text names."""
    assert world.play("spawn-agent odd say it").result == {"said": "it"}
    assert world.play("spawn-agent reader tokens").result == 50
    refused = world.play(f"spawn-agent reader {world.folder}/data/notes.txt").error
    assert "read no files" in str(refused)
    own = play(str(world.folder / "data/notes.txt"), agents=[Custom("reader", read_path)])
    assert own.result == "a note"


def test_a_plugin_goes_on_after_a_refusal(world: World) -> None:
    """A refused call takes its turn among those of the agent: what comes before and after it is done."""
    played = world.play("go-on say it")
    assert isinstance(played.result, list)
    refusal, own = played.result
    assert refusal == "the plugin odd did not declare the agent 'other' among the agents of its pyagent_capabilities"
    assert own == {"said": "it"}
    assert all(told in str(played.events) for told in ("before", "after"))


def test_agents_that_spawn_without_end_are_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each isolated agent holds a process: of those that such ones spawned there is a bounded number at a time."""
    monkeypatch.setattr(isolated_plugin, "_MOST_NESTED", 2)
    error = world.play("bomb").error
    assert "isolated agents have spawned 2 agents of the plugin odd that run now, and may spawn no more" in str(error)
    assert world.play("spawn-agent odd say on").result == {"said": "on"}


def test_score_is_asked_with_less_than_the_plugin_may(world: World) -> None:
    """It reads what was declared, and neither writes nor connects, as it sees the tasks of other agents."""
    odd: Any = world.host.agents()["odd"]
    assert odd.needs == ("summarize",)
    scorer = Scorer(odd.plugin, "odd", 20.0)
    assert scorer.score(Task(text="score-none")) is None
    found = scorer.score(Task(text=f"score-read {world.folder}/data/notes.txt"))
    assert found is not None
    assert (found, len(found.reason), found.reason[:10], found.reason.isprintable()) == (0.9, 200, "a note\\nyy", True)
    for text, told in (
        (f"score-read {world.folder}/secret.txt", "did not declare to read"),
        (f"score-write {world.folder}/out/new.txt", "did not declare to write"),
        ("score-network 9", "did not declare to connect"),
        ("score 2", "returned 2.0, expected a number from 0 to 1"),
    ):
        with pytest.raises((AgentError, ValueError), match=told):
            scorer.score(Task(text=text))


def test_late_scores_are_none_and_are_asked_for_no_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One that computes for ever costs its bound three times in a row, and then nothing; the agent can be described."""
    odd: Any = world.host.agents()["odd"]
    scorer = Scorer(odd.plugin, "odd", 0.3)
    started = time.monotonic()
    assert [scorer.score(Task(text="score-late")) for _ in range(20)] == [None] * 20
    assert time.monotonic() - started < 10
    assert "the isolated agent odd gave no score within 0.3 s, 3 times in a row" in caplog.text
    assert SECONDS < fleet_scores.SCORE_SECONDS, "the router never asks again where it has waited that long"


def test_router_takes_the_isolated_agent_by_its_score(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that no one is named for goes to the agent whose process says that it is for it, with its reason."""
    odd: Any = world.host.agents()["odd"]
    monkeypatch.setattr(odd, "score", Scorer(odd.plugin, "odd", 20.0).score)
    monkeypatch.setattr(fleet_scores, "SCORE_SECONDS", 20.0)  # this machine may be busy
    agents = [Custom("other", echo, score=lambda task: 0.6), odd]
    events = play(f"score-read {world.folder}/data/notes.txt", agents=agents, model=EchoBackend()).events
    [route] = [event for event in events if isinstance(event, RouteChosen)]
    assert (route.agent, route.how, route.score) == ("odd", "score", 0.9)
    assert route.reason.startswith("a note")


def test_tools_are_called_in_their_process(world: World) -> None:
    """A tool's schema is checked here, and its function runs there."""
    shout = world.host.tools()["shout"]
    check = type("Subject", (ToolConformance,), {"make": lambda self: shout, "examples": ({"text": "hello"},)})()
    check.test_host_takes_the_tool()
    check.test_examples_are_answered_with_json()
    check.test_arguments_of_another_type_are_refused()


def test_isolated_agents_pass_the_suite(world: World) -> None:
    """Rules that hold for every agent hold for one in a process of its own."""
    agent, others = world.host.agents()["odd"], (Custom("summarize", read_path),)
    check = type(
        "Subject", (AgentConformance,), {"make": lambda self: agent, "tasks": ("say one", "ask two"), "others": others}
    )()
    check.test_host_takes_the_agent()
    check.test_tasks_at_once_do_not_mix()
    check.test_cancelled_run_ends_at_once()


def test_it_is_listed_with_what_it_may_do(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """`pyagent plugins show` has its capabilities, and what of this machine enforces them."""
    assert run(["plugins", "show", "odd", "--json", "--config", str(world.config)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "loaded"
    assert told["may"]["tools"] == ["double"]
    assert told["isolated_by"] == list(kinds())
    assert run(["plugins", "show", "odd", "--config", str(world.config)]) == 0
    assert "network: nothing; tools: double; agents: reader, odd, summarize" in capsys.readouterr().out


def test_what_cannot_be_isolated_is_left_out(world: World) -> None:
    """A plugin that brings something else, or declares wrongly, is quarantined; so is any where nothing isolates."""
    write_distribution(world.folder / "site", "model", "model.backends = pyagent_odd")
    write_distribution(world.folder / "site", "wrong", "wrong.agents = pyagent_wrong")
    (world.folder / "site/pyagent_wrong.py").write_text("pyagent_capabilities = {'reed': []}\n")
    isolating = Plugins(isolate=["odd", "model", "wrong"])
    host = make_host(msgspec.structs.replace(load_settings(world.config).settings, plugins=isolating))
    host.load_all()
    reasons = {info.name: info.reason for info in host.plugins() if info.state == "quarantined"}
    assert "only agents and tools can be isolated" in reasons["model"]
    assert "unknown field `reed`" in reasons["wrong"]
    assert "odd" in host.agents()
    bare = PluginHost.discover(Plugins(isolate=["odd"]))
    assert "odd" not in bare.agents()
    assert "cannot isolate plugins" in next(info.reason for info in bare.plugins() if info.name == "odd")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("pyagent_capabilities = open('x')", "line 1 has no literal"),
        ("pyagent_capabilities = {'network': ['example.org']}", "expected HOST:PORT"),
        ("pyagent_capabilities = {'read': 'all'}", "Expected `array`"),
        ("pyagent_capabilities = [", "never closed"),
        ("pyagent_capabilities = " + "[" * 5_000, "pyagent_capabilities = {"),
    ],
)
def test_declaration_that_is_none_is_told(tmp_path: Path, source: str, told: str) -> None:
    """It is read, never run; what is wrong is said with what is expected."""
    file = tmp_path / "module.py"
    file.write_text(source)
    with pytest.raises(PluginError, match="expected pyagent_capabilities") as caught:
        declared("mine", file)
    assert told in str(caught.value)


def test_declaration_is_read_without_running_it(tmp_path: Path) -> None:
    """The last literal counts, with whole paths; without one nothing is declared."""
    file = tmp_path / "module.py"
    file.write_text("raise SystemExit\npyagent_capabilities: object = {'read': ['~/notes'], 'tools': ['a']}\n")
    found = declared("mine", file)
    assert (found.read, found.tools) == ((str(Path("~/notes").expanduser().resolve()),), ("a",))
    file.write_text("import os\n")
    assert declared("mine", file) == Capabilities()


def test_link_that_a_plugin_put_where_it_writes_leads_nowhere(tmp_path: Path) -> None:
    """A path below a folder that it may write is allowed by that folder alone, whatever it was made to lead to."""
    for name in ("out", "secret", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "out/in").symlink_to(tmp_path / "secret")
    (tmp_path / "way").symlink_to(tmp_path / "out")
    out, inner, through = (str(tmp_path / name) for name in ("out", "out/in/deep", "way/in"))
    told = Capabilities(read=(inner, through, str(tmp_path / "data")), write=(out, inner, str(tmp_path / "way")))
    assert told.resolved() == Capabilities(read=(str(tmp_path / "data"),), write=(out, out))


def test_addresses_are_those_declared() -> None:
    """A name, its port, and the numbers it may have; no other name, port or family."""
    network = Network(["api.example.org:443", "127.0.0.1:80"])
    assert network.refusal("socket.getaddrinfo", ("api.example.org", 443)) is None
    assert network.refusal("socket.connect", (None, ("93.184.216.34", 443))) is None
    assert network.refusal("socket.connect", (None, ("127.0.0.1", 80))) is None
    for event, args in (
        ("socket.getaddrinfo", ("evil.example.org", 443)),
        ("socket.connect", (None, ("93.184.216.34", 80))),
        ("socket.connect", (None, "/run/docker.sock")),
        ("socket.sendto", (None, ("8.8.8.8", 53))),
    ):
        assert network.refusal(event, args) is not None, (event, args)
    only_numbers = Network(["127.0.0.1:80"])
    assert only_numbers.refusal("socket.connect", (None, ("127.0.0.2", 80))) is not None


def test_a_name_that_isolates_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A name in `plugins.isolate` that no plugin has would leave the plugin that was meant without its bounds."""
    with caplog.at_level("WARNING", logger="pyagent.plugins"):
        PluginHost.discover(Plugins(isolate=["mth"]))
    assert caplog.messages == [
        "plugins.isolate names 'mth', which is not installed, and isolates nothing; did you mean 'math'?"
    ]
