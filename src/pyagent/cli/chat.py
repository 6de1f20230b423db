"""`pyagent chat`: a conversation with the default chain, or with an agent.

The prompt is there at once: the model loads in the background while the first line is typed. Answers are computed in an
event loop in a thread of its own, so that Ctrl+C in the main thread stops the answer and not the program.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pyagent.cli.options import Chain, Config, Model
from pyagent.cli.startup import fetch_first_model, read_settings

if TYPE_CHECKING:
    from pyagent.core.chain import Chain as BackendChain
    from pyagent.core.fleet.orchestrator import Fleet
    from pyagent.core.messages import Message
    from pyagent.core.settings import Settings

T = TypeVar("T")
app = typer.Typer(add_completion=False)

_TEMPERATURE = 0.7
_MAX_TOKENS = 1024
_WENT_ON = {"continue": "continued", "restart": "begun anew"}
"""An answer longer than this is a small model going round in circles."""
_HELP = """/model NAME   talk to another model or chain entry     /model      the one in use
/agent NAME   talk to an agent                         /agent      back to the model
/save FILE    write the conversation as JSON           /new        forget the conversation
/quit         leave (or Ctrl+D)                        Ctrl+C      stop the answer
"""


@app.command()
def chat(
    chain: Chain = None,
    model: Model = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    config: Config = None,
) -> None:
    """Talk to the default chain; /help lists what can be said to the program itself."""

    settings = read_settings(config, chain, model)
    fetch_first_model(settings)
    with _Loop() as loop:
        talk = Conversation(settings, loop)
        talk.forget(system)
        talk.connect()
        try:
            _read_lines(talk)
        finally:
            talk.close()


def _read_lines(talk: Conversation) -> None:
    """Line by line until the end of the input; an error ends its answer only."""
    from pyagent.core.errors import PyAgentError

    with suppress(ImportError):
        import_module("readline")  # gives input() its line editing and history
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n(/quit or Ctrl+D leaves)\n")
            continue
        try:
            if line == "/quit":
                return
            if line:
                talk.take(line)
        except KeyboardInterrupt:
            sys.stdout.write("\n(stopped)\n")
        except PyAgentError as error:
            sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
            if not is_terminal:
                raise


class _Loop:
    """An event loop in a thread, for as long as a `with` block."""

    def __enter__(self) -> _Loop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pyagent-chat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def start(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Begin `work` there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stream(self, pieces: AsyncGenerator[str, None]) -> None:
        """Write pieces as they come; Ctrl+C closes their source, and is raised once that is done."""
        arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(pieces):
                    async for piece in pieces:
                        arrived.put(piece)
            finally:
                arrived.put(None)

        pumping = self.start(pump())
        try:
            while (piece := arrived.get()) is not None:
                sys.stdout.write(piece)
                sys.stdout.flush()
        except KeyboardInterrupt:
            pumping.cancel()
            with suppress(BaseException):
                while arrived.get(timeout=1) is not None:
                    pass
            raise
        pumping.result()


@dataclass(slots=True)
class Conversation:
    """Messages so far, and who answers."""

    settings: Settings
    loop: _Loop
    messages: list[Message] = field(default_factory=list["Message"])
    backend: BackendChain | None = None
    fleet: Fleet | None = None
    agent: str = ""
    entries: list[str] = field(default_factory=list[str])

    def take(self, line: str) -> None:
        """Do what a line says: a command, or something to answer."""
        command, _, rest = line.partition(" ")
        match command:
            case "/help":
                sys.stdout.write(_HELP)
            case "/new":
                self.forget(None)
            case "/model":
                self._use_model(rest.strip())
            case "/agent":
                self._use_agent(rest.strip())
            case "/save":
                self._save(rest.strip())
            case _ if line.startswith("/"):
                sys.stdout.write(f"there is no {command}\n{_HELP}")
            case _:
                self._answer(line)

    def forget(self, system: str | None) -> None:
        """Begin anew, keeping what the model is told first."""
        from pyagent.core.messages import Message

        kept = [Message("system", system)] if system else [m for m in self.messages if m.role == "system"]
        self.messages = kept

    def connect(self, entries: list[str] | None = None) -> None:
        """Talk to this chain from now on, or to that of the settings; it begins to load in the background."""
        from pyagent.assembly import make_chain, make_host

        made = make_chain(self.settings, make_host(self.settings), entries)
        if self.backend:
            self.loop.start(self.backend.close()).result()
        self.backend, self.agent = made, ""
        self.entries = entries or made.names
        self.loop.start(made.load())

    def close(self) -> None:
        """Release the model and the fleet."""
        for owner in (self.fleet, self.backend):
            if owner:
                self.loop.start(owner.close()).result()

    def _use_model(self, name: str) -> None:
        from pyagent.assembly import make_host
        from pyagent.core.backends import Link

        if name:
            schemes = make_host(self.settings).backends()
            self.connect([name if Link.parse(name).scheme in schemes else f"native:{name}"])
        sys.stdout.write(f"talking to {', '.join(self.entries)}\n")

    def _use_agent(self, name: str) -> None:
        from pyagent.core.fleet.agent import unknown_name
        from pyagent.fleet import Fleet

        if name and self.fleet is None:
            self.fleet = Fleet(self.settings)
        if name and self.fleet and name not in self.fleet.agents:
            raise unknown_name("agent", name, list(self.fleet.agents))
        self.agent = name
        sys.stdout.write(f"talking to {name or ', '.join(self.entries)}\n")

    def _save(self, file: str) -> None:
        import msgspec

        from pyagent.core.errors import ConfigError

        if not file:
            raise ConfigError("/save needs the name of a file")
        try:
            Path(file).expanduser().write_bytes(
                msgspec.json.format(msgspec.json.encode(self.messages), indent=2) + b"\n"
            )
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
        sys.stdout.write(f"saved {len(self.messages)} messages to {file}\n")

    def _answer(self, text: str) -> None:
        """Stream an answer; a question without one, because it failed or was stopped at once, is not kept."""
        from pyagent.core.messages import Message

        said: list[str] = []
        try:
            self.loop.stream(self._agent_pieces(text, said) if self.agent else self._model_pieces(text, said))
        finally:
            if said:
                self.messages += [Message("user", text), Message("assistant", "".join(said))]
        sys.stdout.write("\n")

    async def _model_pieces(self, text: str, said: list[str]) -> AsyncGenerator[str, None]:
        from pyagent.core.messages import ChatRequest, Message, SamplingParams

        assert self.backend
        sampling = SamplingParams(temperature=_TEMPERATURE, max_tokens=_MAX_TOKENS)
        request = ChatRequest(messages=[*self.messages, Message("user", text)], sampling=sampling)
        stream = self.backend.chat(request)
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                for attempt in delta.attempts:
                    yield f"({attempt.backend} did not answer: {attempt.reason})\n"
                if delta.resumed:
                    yield f" ({_WENT_ON[delta.resumed.kind]} by {delta.backend}) "
                    if delta.resumed.kind == "restart":
                        said.clear()
                said.append(delta.content)
                yield delta.content

    async def _agent_pieces(self, text: str, said: list[str]) -> AsyncGenerator[str, None]:
        from pyagent.cli.progress import as_text
        from pyagent.core.fleet.events import Progress, RunFinished

        assert self.fleet
        async with aclosing(self.fleet.run(text, agent=self.agent)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    yield f"({event.agent}: {event.text})\n"
                elif isinstance(event, RunFinished):
                    said.append(as_text(event.output).strip())
                    yield said[-1]
