"""Agents elsewhere, by A2A, as ours: of our own server, of the package's own, and of servers that mean harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.a2a import listening, served
from support.fleets import Custom, echo, events_of

from pyagent.assembly import make_agents, make_host
from pyagent.core.config import load_settings
from pyagent.core.errors import AgentAwayError, AgentError, ConfigError, DeadlineError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.replay_check import check_replay
from pyagent.core.fleet.steps import Step
from pyagent.core.messages import ChatRequest
from pyagent.core.settings.a2a import RemoteAgentSettings
from pyagent.infrastructure.a2a.remote_agent import RemoteAgent
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

KEY = "sk-0123456789abcdef"


def remote(url: str, name: str = "far", **settings: Any) -> RemoteAgent:
    return RemoteAgent(name, RemoteAgentSettings(url=url, **settings))


def here(*agents: Agent, script: Any = (), journal: Journal | None = None) -> Fleet:
    return Fleet(ScriptedBackend(script), agents, journal=journal)


def output(events: list[ev.Event]) -> object:
    return next((event.output for event in events if isinstance(event, ev.RunFinished)), None)


class Work:
    """An agent that says what it does and works until it is cancelled or may end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.num_begun, self.is_cancelled = asyncio.Event(), asyncio.Event(), 0, False

    async def __call__(self, context: Context, task: Task) -> object:
        self.num_begun += 1
        context.progress("digging")
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return f"dug {task.text}"


async def choose(context: Context, task: Task) -> object:
    return f"painted {await context.ask('Which colour?', options=('red', 'blue'))}"


class Packaged(AgentExecutor):
    """An agent on the package's own server: by the task's text it answers, breaks, refuses, or streams in pieces."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        assert context.message is not None
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        text = context.get_user_input()
        said = updater.new_agent_message([new_text_part(f"about {text}")])
        if text == "refuse":
            await updater.reject(said)
            return
        if text == "break":
            await updater.failed(said)
            return
        await updater.update_status(TaskState.TASK_STATE_WORKING, said)
        for number, piece in enumerate(("one ", "two ", "three")):
            await updater.add_artifact([new_text_part(piece)], artifact_id="a", append=number > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def packaged(*, streaming: bool = True) -> Callable[[str], Starlette]:
    """Return what makes the package's own server at a URL."""

    def made(url: str) -> Starlette:
        card = AgentCard(
            name="Packaged",
            description="Counts.",
            version="1",
            supported_interfaces=[AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")],
            capabilities=AgentCapabilities(streaming=streaming),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="count", name="Counting", description="Counts to three.", tags=["numbers"])],
        )
        handler = DefaultRequestHandler(Packaged(), InMemoryTaskStore(), card)
        return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])

    return made


class Late:
    """An application that is made when its URL is known."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


async def with_server(make: Callable[[str], Any], work: Callable[[str], Awaitable[None]]) -> None:
    app = Late()
    async with listening(app) as url:
        app.app = make(url)
        await work(url)


@pytest.mark.parametrize("streaming", [True, False])
def test_packages_own_server(streaming: bool) -> None:
    """Its pieces are one result, read along where it streams; what it says of a failure is told."""

    async def work(url: str) -> None:
        async with here(remote(url)) as fleet:
            events, error = await events_of(fleet, "go", agent="far")
            assert (error, output(events)) == (None, "one two three")
            if streaming:
                assert "".join(event.text for event in events if isinstance(event, ev.TextDelta)) == "one two three"
                assert "about go" in [event.text for event in events if isinstance(event, ev.Progress)]
            _, error = await events_of(fleet, "break", agent="far")
            assert isinstance(error, AgentError)
            assert "the task of far ended there as failed: about break" in str(error)
            _, error = await events_of(fleet, "refuse", agent="far")
            assert isinstance(error, AgentAwayError)
            assert "far does not take the task: about refuse" in str(error)

    asyncio.run(with_server(packaged(streaming=streaming), work))


def test_our_own_server_by_skill_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A skill is one of its agents; the key is read from the environment, and a wrong one is told without it."""
    monkeypatch.setenv("FAR_TOKEN", KEY)
    monkeypatch.setenv("WRONG_TOKEN", "sk-wrong-wrong-wrong")

    async def main() -> None:
        theirs = here(Custom("echo", echo), Custom("work", Work()))
        async with served(theirs, [KEY]) as url:
            async with here(remote(url, skill="echo", token="env:FAR_TOKEN")) as fleet:
                steps = [
                    Step(name="one", agent="far", task=Task(text="hi")),
                    Step(name="two", agent="far", after=("one",), task=Task(text="and")),
                ]
                events, error = await events_of(fleet, steps)
                assert (error, output(events)) == (None, "Result of one:\nhi!\n\nand!")
            async with here(remote(url, skill="echo", token="env:WRONG_TOKEN")) as fleet:
                events, error = await events_of(fleet, "hi", agent="far")
                assert "far answers 401" in str(error)
                assert not any("sk-wrong" in str(event) for event in events)
            async with here(remote(url, token="env:NOT_THERE")) as fleet:
                _, error = await events_of(fleet, "hi", agent="far")
                assert "token of the agent far (a2a.agents) is to be env:NOT_THERE, which is not set" in str(error)

    asyncio.run(main())


def test_router_knows_the_cards_skills() -> None:
    """The card is fetched when a task has to be routed, not before; the model that routes reads its skills."""
    prompts: list[str] = []

    def choose_far(request: ChatRequest) -> str:
        prompts.append(request.messages[-1].text)
        return "far"

    async def work(url: str) -> None:
        far = remote(url)
        async with here(far, Custom("near", echo), script=choose_far) as fleet:
            assert far.description == "an agent elsewhere, far"
            events, error = await events_of(fleet, "please enumerate")
            assert (error, output(events)) == (None, "one two three")
            assert "far: Counts. Skills: Counting (numbers): Counts to three." in prompts[0]

    asyncio.run(with_server(packaged(), work))


def test_next_candidate_has_the_task_of_one_that_is_away() -> None:
    """One that refuses the task, or is not there, is passed over by the router; by name it is an agent's failure."""

    async def work(url: str) -> None:
        async with here(remote(url), Custom("near", echo), script=lambda _: "far") as fleet:
            events, error = await events_of(fleet, "refuse")
            assert (error, output(events)) == (None, "refuse!")
            assert [event.agent for event in events if isinstance(event, ev.RouteChosen)] == ["far", "near"]
        async with here(remote("http://127.0.0.1:1"), Custom("near", echo)) as fleet:
            events, error = await events_of(fleet, "anything")
            assert (error, output(events)) == (None, "anything!")
            _, error = await events_of(fleet, "anything", agent="far")
            assert isinstance(error, AgentAwayError)
            assert "far does not answer at http://127.0.0.1:1/.well-known/agent-card.json (ConnectError)" in str(error)

    asyncio.run(with_server(packaged(), work))


def test_agent_as_a_tool_and_a_question() -> None:
    """Another agent calls it and is told its result; what it asks is asked here, and its answer sent there."""

    async def lead(context: Context, task: Task) -> object:
        return f"they {await context.spawn('far', task)}"

    async def main() -> None:
        events: list[ev.Event] = []
        async with (
            served(here(Custom("choose", choose))) as url,
            here(remote(url), Custom("lead", lead)) as fleet,
        ):
            async for event in fleet.run("the fence", agent="lead", waits_for_answers=True):
                events.append(event)
                if isinstance(event, ev.QuestionAsked):
                    assert event.question.text == "far asks: Which colour? (red, blue)"
                    fleet.answer(event.run, event.question.id, "blue")
        assert output(events) == "they painted blue"

    asyncio.run(main())


def test_cancelled_run_cancels_the_task_there() -> None:
    """A run that is cancelled, and one whose time is up, end the task elsewhere too."""

    async def main() -> None:
        work = Work()
        async with served(here(Custom("work", work))) as url, here(remote(url, timeout_seconds=0.3)) as fleet:
            _, error = await events_of(fleet, "a hole", agent="far")
            assert isinstance(error, DeadlineError)
            assert "far gave no result in 0.3 s (a2a.agents.far.timeout_seconds)" in str(error)
            async with asyncio.timeout(30):
                while not work.is_cancelled:  # noqa: ASYNC110 - what it has no event for
                    await asyncio.sleep(0.01)
            assert work.num_begun == 1

    asyncio.run(main())


def test_resumed_run_goes_on_with_the_task_there(tmp_path: Path) -> None:
    """A run that was left finds the task that it began, and sends nothing a second time."""

    async def main() -> None:
        work, journal = Work(), SqliteJournal(tmp_path)
        async with served(here(Custom("work", work))) as url:
            async with here(remote(url), journal=journal) as fleet:
                job = asyncio.create_task(events_of(fleet, "a hole", agent="far", run_id="r-dig"))
                async with asyncio.timeout(30):
                    await work.begun.wait()
                    while not any(isinstance(each.event, ev.Progress) for each in journal.replay("r-dig")):  # noqa: ASYNC110 - another's
                        await asyncio.sleep(0.01)
                under_way = fleet.under_way("r-dig")
                assert under_way is not None
                under_way.leave()
                await asyncio.gather(job, return_exceptions=True)
            work.may_end.set()
            async with here(remote(url), journal=journal) as fleet:
                events = [event async for event in fleet.resume("r-dig")]
            assert output(events) == "dug a hole"
            assert (work.num_begun, work.is_cancelled) == (1, False)
        journal.close()

    asyncio.run(main())


def evil(card: Callable[[str], Any], rpc: Callable[[Request], Awaitable[Response]] | None = None) -> Any:
    """Return what makes a server with this card, and this answer to messages."""

    def made(url: str) -> Starlette:
        async def show(_: Request) -> Response:
            shown = card(url)
            return shown if isinstance(shown, Response) else JSONResponse(shown)

        routes = [Route("/.well-known/agent-card.json", show)]
        return Starlette(routes=[*routes, *([Route("/rpc", rpc, methods=["POST"])] if rpc else [])])

    return made


def card_at(url: str, **more: Any) -> dict[str, Any]:
    interface = {"url": f"{url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = {"name": "Evil", "description": "d", "version": "1", "skills": [], "supportedInterfaces": [interface]}
    return card | {"capabilities": {"streaming": True}} | more


@pytest.mark.parametrize(
    ("card", "said"),
    [
        (lambda url: Response(b"x" * (2 << 20)), "is longer than 1 MiB"),
        (lambda url: Response(b"[" * 100_000), "has no card at"),
        (lambda url: Response(b"{}", headers={"location": "http://127.0.0.1:1/"}, status_code=302), "answers 302"),
        (lambda url: card_at("http://169.254.169.254"), "sent to http://169.254.169.254:80, another server than"),
        (lambda url: card_at(url, supportedInterfaces=[]), "sent to nowhere, another server than"),
        (lambda url: card_at(url, skills="all"), "has no card at"),
    ],
)
def test_hostile_card_is_one_sentence(card: Callable[[str], Any], said: str) -> None:
    """A card that is too long, no card, leads elsewhere or is wrong is told as that, and nothing is sent."""

    async def work(url: str) -> None:
        async with here(remote(url)) as fleet:
            _, error = await events_of(fleet, "x", agent="far")
            assert isinstance(error, AgentAwayError)
            assert said in str(error)

    asyncio.run(with_server(evil(card), work))


async def endless(_: Request) -> Response:
    async def pieces() -> Any:
        for _ in range(64):
            await asyncio.sleep(0)
            yield b"data: " + b"x" * (1 << 20)

    return StreamingResponse(pieces(), media_type="text/event-stream")


async def packed(_: Request) -> Response:
    return Response(b"x", headers={"content-encoding": "gzip", "content-type": "text/event-stream"})


async def quoting(request: Request) -> Response:
    error = {"code": -32000, "message": f"no: {request.headers.get('authorization')}\n" + "y" * 10_000}
    return JSONResponse({"jsonrpc": "2.0", "id": "1", "error": error})


async def nonsense(_: Request) -> Response:
    return Response(b'data: {"jsonrpc": "2.0", "result": [[1]]}\n\n', media_type="text/event-stream")


async def flooding(_: Request) -> Response:
    async def pieces() -> Any:
        artifact = {"artifactId": "a", "parts": [{"text": "z" * 100_000}]}
        update = {"taskId": "t", "contextId": "c", "append": True, "artifact": artifact}
        answer = {"jsonrpc": "2.0", "id": "1", "result": {"artifactUpdate": update}}
        for _ in range(20):
            yield b"data: " + msgspec.json.encode(answer) + b"\n\n"

    return StreamingResponse(pieces(), media_type="text/event-stream")


@pytest.mark.parametrize(
    ("rpc", "said"),
    [
        (endless, "far does not answer (RemoteProtocolError)"),
        (packed, "it packs its answers"),
        (quoting, "no: [redacted]"),
        (nonsense, "far fails"),
        (flooding, "far gave more than 1,000,000 characters"),
    ],
)
def test_hostile_answers_end_their_step_alone(rpc: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless, packed, wrong and flooding answers are an agent's failure in bounded words, without the key."""
    monkeypatch.setenv("FAR_TOKEN", KEY)

    async def work(url: str) -> None:
        async with here(remote(url, token="env:FAR_TOKEN")) as fleet:
            events, error = await events_of(fleet, "x", agent="far")
            assert isinstance(error, AgentError)
            assert said in str(error)
            assert len(str(error)) < 2_500
            assert not any(KEY in str(event) for event in events)

    asyncio.run(with_server(evil(card_at, rpc), work))


def test_what_is_not_sent() -> None:
    """Files of this machine, and private runs, unless the settings let them, stay here."""

    async def main() -> None:
        async with here(remote("http://192.0.2.1")) as fleet:
            _, error = await events_of(fleet, "x", agent="far", is_private=True)
            assert isinstance(error, RequestError)
            assert "a2a.agents.far.private = true lets it" in str(error)
            _, error = await events_of(fleet, "x", agent="far", files=[__file__])
            assert "reads no files of this machine" in str(error)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('url = "ftp://x"', "expected a URL such as"),
        ('url = "http://u:p@x"', "expected a URL without a password"),
        ('url = "http://x"\ntoken = "sk-secret"', "expected env:NAME or file:PATH, never the token itself"),
        ('url = "http://x"\nskil = "y"', "expected skill in the agent far, got 'skil'"),
        ('skill = "y"', "expected a table with `url` as the agent far"),
        (
            'url = "http://x"\nheaders = { x-key = "abc" }',
            "expected env:NAME or file:PATH, as headers of the agent far",
        ),
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path: Path, table: str, said: str) -> None:
    """Each mistake is named with its agent and key; a secret that was written there is not repeated."""
    (tmp_path / "pyagent.toml").write_text(f"[a2a.agents.far]\n{table}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path / "pyagent.toml")
    assert said in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_agents_of_the_settings_are_the_fleets(tmp_path: Path) -> None:
    """They stand beside those of plugins, nothing is fetched for that; a name that is taken is refused."""
    (tmp_path / "pyagent.toml").write_text('[a2a.agents.far]\nurl = "http://127.0.0.1:1"\n')
    settings = load_settings(tmp_path / "pyagent.toml").settings
    assert isinstance(make_agents(settings, make_host(settings))["far"], RemoteAgent)
    (tmp_path / "pyagent.toml").write_text('[a2a.agents.math]\nurl = "http://127.0.0.1:1"\n')
    settings = load_settings(tmp_path / "pyagent.toml").settings
    with pytest.raises(ConfigError, match=r"a2a\.agents\.math: there is an agent math here"):
        make_agents(settings, make_host(settings))


def test_a_replay_is_checked_without_the_agent_elsewhere() -> None:
    """A run that had a part done elsewhere is checked when that is gone: its result is the journal's, and told."""

    async def lead(context: Context, task: Task) -> object:
        return f"they {await context.spawn('far', task)}"

    async def work(url: str) -> None:
        journal = MemoryJournal()
        async with here(remote(url), Custom("lead", lead), journal=journal) as fleet:
            events, error = await events_of(fleet, "go", agent="lead")
            assert (error, output(events)) == (None, "they one two three")
        async with here(remote("http://127.0.0.1:1"), Custom("lead", lead), journal=journal) as fleet:
            report = await check_replay(fleet, events[0].run)
            assert (report.difference, report.num_agents) == ("", 1)
            assert report.unchecked == ("what far, an agent elsewhere, would do now: its result is the journal's",)

    asyncio.run(with_server(packaged(), work))
