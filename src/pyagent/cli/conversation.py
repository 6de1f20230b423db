"""A conversation of `pyagent chat`: what was said, who answers, and the commands that change either.

The last conversation is kept in the data folder for `--continue`, unless it is private; knows nothing of how lines are
read. Answers come from an event loop in another thread (`chat.Loop`), so that Ctrl+C stops an answer and no more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyagent.cli.output import coloured
from pyagent.core.errors import ConfigError, InvalidOutputError, RequestError
from pyagent.core.messages import ChatRequest, Message, SamplingParams, Usage
from pyagent.core.nearest import did_you_mean
from pyagent.core.one_line import printable
from pyagent.infrastructure.private_files import make_private_folder, opened_private

if TYPE_CHECKING:
    from pyagent.cli.chat import Loop
    from pyagent.core.chain import Chain as BackendChain
    from pyagent.core.fleet.orchestrator import Fleet
    from pyagent.core.response_format import ResponseFormat
    from pyagent.core.settings import Settings

_TEMPERATURE = 0.7
_MAX_TOKENS = 1024
"""An answer longer than this is a small model going round in circles."""
_WENT_ON = {"continue": "continued", "restart": "begun anew"}
COMMANDS = {
    "/model": "/model NAME   talk to another model or chain entry; without NAME say which",
    "/agent": "/agent NAME   talk to an agent; without NAME to the model again",
    "/system": "/system TEXT  what the model is told first; without TEXT say what",
    "/file": "/file PATH    give a file with the next question; may be repeated",
    "/save": "/save FILE    write the conversation as JSON",
    "/new": "/new          forget the conversation",
    "/help": "/help         show this",
    "/quit": "/quit         leave (or Ctrl+D); Ctrl+C stops the answer",
}
_HELP = "\n".join([*COMMANDS.values(), '"""           begins and ends a text of several lines; a paste is one text\n'])


@dataclass(slots=True)
class Conversation:
    """Messages so far, and who answers."""

    settings: Settings
    loop: Loop
    is_private: bool = False
    shows_usage: bool = False
    response_format: ResponseFormat | None = None
    messages: list[Message] = field(default_factory=list[Message])
    files: list[str] = field(default_factory=list[str])
    backend: BackendChain | None = None
    fleet: Fleet | None = None
    agent: str = ""
    entries: list[str] = field(default_factory=list[str])

    def take(self, text: str) -> None:
        """Do what a message says: a command, or something to answer."""
        command, _, rest = text.partition(" ")
        does = {
            "/model": self._use_model,
            "/agent": self._use_agent,
            "/system": self._use_system,
            "/file": self._add_file,
            "/save": self._save,
        }
        if command in does:
            does[command](rest.strip())
        elif command == "/help":
            sys.stdout.write(_HELP)
        elif command in {"/new", "/clear"}:
            self.forget(None)
        elif command.startswith("/") and "/" not in command[1:]:
            hint = did_you_mean(command, COMMANDS, "/help lists all commands")
            raise RequestError(f"there is no {command}; {hint}", param="command")
        else:
            self._answer(text)

    def forget(self, system: str | None) -> None:
        """Begin anew, keeping what the model is told first."""
        kept = [Message("system", system)] if system else [m for m in self.messages if m.role == "system"]
        self.messages = kept
        self.files.clear()

    def connect(self, entries: list[str] | None = None, *, is_checked: bool = False) -> None:
        """Talk to this chain from now on, or to that of the settings; it begins to load in the background.

        With `is_checked` one that is not ready is refused, and who answered goes on to.
        """
        from pyagent.assembly import make_chain, make_host

        made = make_chain(self.settings, make_host(self.settings), entries)
        if is_checked:
            health = self.loop.start(made.health()).result()
            if not health.is_ready:
                self.loop.start(made.close()).result()
                raise ConfigError(health.detail, key="chain")
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

    # -- the last conversation ---------------------------------------------------------------------------------------

    @property
    def _last_file(self) -> Path:
        return self.settings.paths.data / "chat" / "last.json"

    def resume(self) -> None:
        """Go on with the last conversation; raises `RequestError` when there is none."""
        try:
            self.messages = msgspec.json.decode(self._last_file.read_bytes(), type=list[Message])
        except FileNotFoundError as error:
            raise RequestError("there is no conversation to continue", param="continue") from error
        except (OSError, msgspec.DecodeError) as error:
            raise RequestError(f"the last conversation cannot be read: {error}", param="continue") from error
        num_turns = sum(message.role == "user" for message in self.messages)
        sys.stdout.write(coloured(f"(going on after {num_turns} questions; /new forgets them)\n", "dim"))

    def _keep(self) -> None:
        """Keep the conversation for `--continue`; where that is not possible, chatting goes on."""
        if self.is_private:
            return
        file, partial = self._last_file, self._last_file.with_suffix(".partial")
        try:
            make_private_folder(file.parent)
            partial.unlink(missing_ok=True)  # one that was left may be open to others
            with open(partial, "xb", opener=opened_private) as kept:
                kept.write(msgspec.json.encode(self.messages))
            partial.replace(file)
        except OSError as error:
            self.is_private = True  # said once
            sys.stderr.write(f"warning: the conversation is not kept: {error.strerror}\n")

    # -- commands ----------------------------------------------------------------------------------------------------

    def _use_model(self, name: str) -> None:
        from pyagent.assembly import make_host
        from pyagent.core.backends import LinkSpec

        if name:
            schemes = make_host(self.settings).backends()
            entry = name if LinkSpec.parse(name).scheme in schemes else f"native:{name}"
            self.connect([entry], is_checked=True)
        sys.stdout.write(f"talking to {', '.join(self.entries)}\n")

    def _use_agent(self, name: str) -> None:
        from pyagent.core.fleet.agent import unknown_name
        from pyagent.fleet import Fleet

        if name and self.response_format is not None:
            text = "agents answer in forms of their own; leave --schema, --regex, --choice or --grammar out"
            raise RequestError(text, param="agent")
        if name and self.fleet is None:
            self.fleet = Fleet(self.settings)
        if name and self.fleet and name not in self.fleet.agents:
            raise unknown_name("agent", name, list(self.fleet.agents))
        self.agent = name
        sys.stdout.write(f"talking to {name or ', '.join(self.entries)}\n")

    def _use_system(self, text: str) -> None:
        if text:
            self.messages = [Message("system", text), *(m for m in self.messages if m.role != "system")]
        told = next((message.text for message in self.messages if message.role == "system"), "nothing")
        sys.stdout.write(f"the model is told first: {told}\n")

    def _add_file(self, name: str) -> None:
        path = Path(name).expanduser()
        if not name or not path.is_file():
            raise RequestError(f"there is no file {name}" if name else "/file needs the path of a file", param="file")
        self.files.append(str(path.resolve()))
        sys.stdout.write(f"{path.name} goes with the next question\n")

    def _save(self, file: str) -> None:
        if not file:
            raise ConfigError("/save needs the name of a file")
        try:
            with open(Path(file).expanduser(), "wb", opener=opened_private) as saved:
                saved.write(msgspec.json.format(msgspec.json.encode(self.messages), indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
        sys.stdout.write(f"saved {len(self.messages)} messages to {file}\n")

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, text: str) -> None:
        """Stream an answer; a question without one, because it failed or was stopped at once, is not kept."""
        asked, said, begin = Message("user", text), list[str](), time.monotonic()
        usage = [Usage()]
        if not self.agent:
            asked = Message("user", self._with_files(text))
        try:
            pieces = self._agent_pieces if self.agent else self._model_pieces
            self.loop.stream(pieces(asked, said, usage))
        finally:
            if said:
                self.messages += [asked, Message("assistant", "".join(said))]
                self.files.clear()
                self._keep()
        sys.stdout.write("\n")
        if self.shows_usage and usage[-1].total_tokens:
            rate = usage[-1].completion_tokens / max(time.monotonic() - begin, 1e-6)
            told = f"({usage[-1].prompt_tokens:,} tokens in, {usage[-1].completion_tokens:,} out, {rate:,.0f} tok/s)"
            sys.stdout.write(coloured(f"{told}\n", "dim"))

    def _with_files(self, text: str) -> str:
        """Put the text of the files before the question."""
        if not self.files:
            return text
        from pyagent.logic.agents.documents import read_documents

        documents = self.loop.start(read_documents(self.files)).result()
        return "\n\n".join([*(f"{Path(each.path).name}:\n{each.text}" for each in documents), text])

    async def _model_pieces(self, asked: Message, said: list[str], usage: list[Usage]) -> AsyncGenerator[str, None]:
        assert self.backend
        sampling = SamplingParams(temperature=_TEMPERATURE, max_tokens=_MAX_TOKENS)
        request = ChatRequest(
            messages=[*self.messages, asked],
            sampling=sampling,
            private=self.is_private,
            response_format=self.response_format,
        )
        async with aclosing(self.backend.chat(request)) as deltas:
            async for delta in deltas:
                for attempt in delta.attempts:
                    yield f"({attempt.backend} did not answer: {attempt.reason})\n"
                if delta.resumed:
                    yield f" ({_WENT_ON[delta.resumed.kind]} by {delta.backend}) "
                    if delta.resumed.kind == "restart":
                        said.clear()
                usage += [delta.usage] if delta.usage else []
                said.append(delta.content)
                yield delta.content
                if delta.finish_reason == "length" and self.response_format is not None:
                    text = f"the answer was cut after {_MAX_TOKENS:,} tokens, before it was all that is asked for"
                    raise InvalidOutputError(text, param="response_format")

    async def _agent_pieces(self, asked: Message, said: list[str], usage: list[Usage]) -> AsyncGenerator[str, None]:
        from pyagent.cli.answering import answer_at_terminal, can_answer
        from pyagent.cli.progress import as_text
        from pyagent.core.fleet.agent import Task
        from pyagent.core.fleet.events import Progress, QuestionAsked, RunFinished

        assert self.fleet
        task = Task(text=asked.text, files=tuple(self.files), history=tuple(self.messages))
        waits = True if can_answer() else None
        run = self.fleet.run(task, agent=self.agent, is_private=self.is_private, waits_for_answers=waits)
        async with aclosing(run) as events:
            async for event in events:
                if isinstance(event, Progress):
                    yield f"({event.agent}: {printable(event.text)})\n"
                elif isinstance(event, QuestionAsked) and waits:
                    await answer_at_terminal(self.fleet, event)
                elif isinstance(event, RunFinished):
                    told = event.totals
                    tokens = told.prompt_tokens, told.completion_tokens
                    usage.append(Usage(*tokens, total_tokens=sum(tokens)))
                    said.append(as_text(event.output).strip())
                    yield said[-1]
