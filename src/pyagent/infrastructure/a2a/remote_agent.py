"""An agent of another program as one of ours: chosen by its card, given tasks, asked back, and ended with its step.

Nothing of it is fetched before a task may be for it. What it is sent is kept with the run, so that a run that is
resumed goes on with the task that it began there (`conversation`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from pyagent.core.addresses import is_loopback
from pyagent.core.config import read_references
from pyagent.core.errors import AgentAwayError, AgentError, ConfigError, DeadlineError, Decline, PyAgentError
from pyagent.core.fleet.agent import Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.settings.a2a import RemoteAgentSettings
from pyagent.http_pool import HttpPool
from pyagent.infrastructure.a2a.card import Card, fetch_card

if TYPE_CHECKING:
    from pyagent.infrastructure.a2a.conversation import Conversation, Reply

MAX_TASK_CHARACTERS = 1_000_000
_MAX_QUESTIONS = 20
_LOOK_SECONDS = 1.0
"""How long the router waits for a card; one that comes later is there for the next task."""
_CARD_SECONDS = 300.0
_AWAY_SECONDS = 30.0
logger = logging.getLogger("pyagent.a2a")


def a2a_agents(agents: Mapping[str, RemoteAgentSettings]) -> list[RemoteAgent]:
    """Return the agents of the settings; nothing is fetched or imported."""
    return [RemoteAgent(name, settings) for name, settings in agents.items()]


class RemoteAgent:
    """One agent elsewhere. Its description is that of the settings, else its card's, once that is known."""

    is_elsewhere = True
    """A replay that is checked does not run it: what it gave is in the journal, and its code is not ours."""

    def __init__(self, name: str, settings: RemoteAgentSettings) -> None:
        self.name = name
        self.description = settings.description or f"an agent elsewhere, {settings.skill or name}"
        self.settings = settings
        self._card: Card | None = None
        self._look: threading.Thread | None = None
        self._fault: tuple[float, AgentAwayError] | None = None
        self._pool: HttpPool | None = None

    def score(self, task: Task) -> Score | None:
        """Return None, as its description tells what it is for; 0 for what it cannot do, or while it is away."""
        if task.files:
            return Score(0, "it reads no files of this machine")
        if not self._has_card:
            self._begin_look()
            if self._look is not None:
                self._look.join(_LOOK_SECONDS)
        fault = self._fault
        return Score(0, str(fault[1])) if fault and time.monotonic() - fault[0] < _AWAY_SECONDS else None

    @property
    def _has_card(self) -> bool:
        return self._card is not None and time.monotonic() - self._card.fetched_at < _CARD_SECONDS

    def _begin_look(self) -> None:
        if self._look is None or not self._look.is_alive():
            self._look = threading.Thread(target=self._look_now, name=f"card of {self.name}", daemon=True)
            self._look.start()

    def _look_now(self) -> None:
        """Fetch the card; one that cannot be fetched is not looked for again at once."""
        if self._fault is not None and time.monotonic() - self._fault[0] < _AWAY_SECONDS:
            return
        try:
            card = self._card = fetch_card(self.name, self.settings.url, self._headers())
            self._fault = None
            self.description = self.settings.description or card.description(self.settings.skill) or self.description
        except AgentAwayError as error:
            self._fault = time.monotonic(), error
        except ConfigError as error:
            self._fault = time.monotonic(), AgentAwayError(str(error), agent=self.name)

    def _headers(self) -> dict[str, str]:
        """Return what it is sent to be let in. Raises `ConfigError` for a secret that is not there."""
        where = f"the agent {self.name} (a2a.agents)"
        headers = read_references(self.settings.headers, where)
        if self.settings.token:
            token = read_references({"token": self.settings.token}, where)["token"]
            headers["authorization"] = f"Bearer {token}"
        return headers

    async def run(self, context: Context, task: Task) -> str:
        """Give it the task, answer what it asks by a person, and return its result."""
        text = self._text_of(context, task)
        talk = await self._conversation(context)
        try:
            return await self._result(context, talk, text)
        finally:
            await talk.close()

    async def _result(self, context: Context, talk: Conversation, text: str) -> str:
        reply, is_anew = await self._exchange(talk, text, "", ""), False
        for _ in range(_MAX_QUESTIONS):
            if reply.state == "input-required":
                answer = await context.ask(f"{self.name} asks: {reply.text or 'what next?'}")
                reply = await self._exchange(talk, answer, reply.task, reply.context)
            elif not is_anew and (
                reply.state == "gone" or (reply.state == "canceled" and context.run.past.num_records)
            ):
                is_anew = True  # ended with the run that is resumed, or forgotten there
                reply = await self._exchange(talk, text, "", "")
            else:
                break
        if reply.state == "completed":
            return reply.text
        said = f": {reply.text}" if reply.text else ""
        if reply.state == "rejected":
            raise AgentAwayError(f"{self.name} does not take the task{said}", agent=self.name)
        if reply.state == "input-required":
            raise AgentError(f"{self.name} asked {_MAX_QUESTIONS} times and gave no result", agent=self.name)
        raise AgentError(f"the task of {self.name} ended there as {reply.state}{said}", agent=self.name)

    async def _exchange(self, talk: Conversation, text: str, task: str, context: str) -> Reply:
        """Send a message; return how the task stands when it needs nothing more, or something of us."""
        seconds = self.settings.timeout_seconds
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return await talk.exchange(text, task, context)
        except TimeoutError as error:
            if timer.expired():
                text = f"{self.name} gave no result in {seconds:g} s (a2a.agents.{self.name}.timeout_seconds)"
                raise DeadlineError(text) from error
            raise

    def _text_of(self, context: Context, task: Task) -> str:
        """Return what it is sent. Raises `Decline` for what it may not have, or is too long."""
        if task.files:
            raise Decline("it is elsewhere and reads no files of this machine; give it their text")
        if context.run.is_private and not (self.settings.private or is_loopback(self.settings.url)):
            text = f"the run is private, and it is on another machine; a2a.agents.{self.name}.private = true lets it"
            raise Decline(text)
        said = [f"{message.role}: {message.text}" for message in task.history if message.text.strip()]
        results = [f"Result of {name}:\n{text_of(result)}" for name, result in task.results.items()]
        whole = "\n\n".join(part for part in ("\n".join(said), *results, task.text) if part.strip())
        if len(whole) > MAX_TASK_CHARACTERS:
            raise Decline(f"it is sent at most {MAX_TASK_CHARACTERS:,} characters, the task has {len(whole):,}")
        return whole

    async def _conversation(self, context: Context) -> Conversation:
        """Return a conversation with it. Raises `AgentAwayError` where it cannot be reached or leads elsewhere."""
        try:
            await asyncio.to_thread(import_module, "pyagent.infrastructure.a2a.conversation")
        except ImportError as error:
            text = f"A2A needs packages that are not installed: pip install a2a-sdk sse-starlette ({error})"
            raise ConfigError(text, key="a2a.agents") from error
        from pyagent.infrastructure.a2a.conversation import Conversation

        card = await self._fetched()
        settings = self.settings
        if elsewhere := card.leads_elsewhere(settings.url):
            text = (
                f"the card of {self.name} has its tasks sent to {elsewhere[:200]}, another server than {settings.url}"
            )
            raise AgentAwayError(f"{text}; if you trust that, set `url` to it", agent=self.name)
        if settings.skill and not card.has_skill(settings.skill):
            logger.warning("the card of %s has no skill %r", self.name, settings.skill)
        if self._pool is None:
            self._pool = HttpPool(settings.url, headers=self._headers(), read_seconds=60.0)
        return Conversation(context, self.name, settings.skill, card.own_document(settings.url), self._pool)

    async def _fetched(self) -> Card:
        if not self._has_card or self._card is None:
            self._card, self._fault = None, None
            await asyncio.to_thread(self._look_now)
        if self._card is None:
            fault: PyAgentError | None = self._fault[1] if self._fault else None
            raise fault or AgentAwayError(f"{self.name} has no card", agent=self.name)
        return self._card

    async def close(self) -> None:
        """Close its connections."""
        if self._pool is not None:
            await self._pool.close()
