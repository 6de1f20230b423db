"""Questions of a run to people: asked once, waited for, answered by id.

A run whose questions no answer can reach ends with the question instead of waiting for ever. Knows no terminal and no
socket: who answers calls `answer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.errors import DeadlineError, NeedsAnswerError, RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.events import Question
from pyagent.core.fleet.slots import Slot
from pyagent.core.messages import JsonObject
from pyagent.core.resilience.deadline import Deadline

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

ALLOW, ALWAYS, DENY = "allow", "always", "deny"
ALL_TOOLS = "*"
_MAX_SHOWN_CHARACTERS = 100_000
"""Of a call that a person is to approve: it is shown whole, as what is left out is what would do harm."""


@dataclass(slots=True)
class OpenQuestions:
    """The questions of one run that wait for an answer. Unless it `waits`, one that is asked ends its agent.

    `approved` names the tools that need no more approval; `*` is all. `given` has the answers that a run was
    resumed with, by their questions' ids. Where they are `offered`, models may ask by the tool `ask_user`. While one
    waits the run leaves its `slot` to others.
    """

    waits: bool = False
    offered: bool = False
    approved: set[str] = field(default_factory=set[str])
    num_effects: int = 0
    given: dict[str, str] = field(default_factory=dict[str, str])
    slot: Slot | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _effects_over: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: dict[str, tuple[Question, asyncio.Future[str]]] = field(
        default_factory=dict[str, tuple[Question, asyncio.Future[str]]]
    )

    async def answer_to(self, question: Question, deadline: Deadline) -> str:
        """Wait for the answer. Raises `NeedsAnswerError` where none can come, `DeadlineError` past it."""
        if (given := self.given.pop(question.id, None)) is not None:
            check_answer(question, given)
            return given
        if not self.waits:
            await deadline.bound(self._settled(), f"the effects under way, before it is asked: {question.text:.200}")
            raise NeedsAnswerError(_unanswered(question), question=question.id, options=question.options)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = question, waiting
        if self.slot is not None:
            self.slot.suspend()
        try:
            answer = await deadline.bound(waiting, f"an answer to: {question.text}")
        except DeadlineError:
            del self._waiting[question.id]
            await self._go_on()
            raise
        except asyncio.CancelledError:
            del self._waiting[question.id]
            raise
        del self._waiting[question.id]
        await self._go_on()
        return answer

    async def _go_on(self) -> None:
        """Take the run's turn again, once none of its questions waits."""
        async with self._turn:
            if self.slot is not None and not self._waiting:
                await self.slot.resume()
                if self._waiting:  # asked meanwhile
                    self.slot.suspend()

    @contextmanager
    def effect(self) -> Generator[None]:
        """While an effect is under way no question ends the run: the effect's outcome would be unknown."""
        self.num_effects += 1
        try:
            yield
        finally:
            self.num_effects -= 1
            if not self.num_effects:
                self._effects_over.set()

    async def _settled(self) -> None:
        """Return when no effect is under way, and those that began beside the question are over."""
        await asyncio.sleep(0)
        while self.num_effects:
            self._effects_over.clear()
            await self._effects_over.wait()

    async def approve(self, context: Context, tool: str, arguments: JsonObject | msgspec.Struct) -> None:
        """Return when the tool may run; raises `RequestError` when a person denies it."""
        if self.approved & {tool, ALL_TOOLS}:
            return
        shown = msgspec.json.encode(arguments, enc_hook=str).decode()
        if len(shown) > _MAX_SHOWN_CHARACTERS:
            told = (
                f"{len(shown):,} characters of arguments; {_MAX_SHOWN_CHARACTERS:,} are the most that a person is asked"
            )
            raise RequestError(f"{tool} needs a person's approval, and has {told} to read", param="tool", code="denied")
        text = f"may {context.agent} call {tool} with {shown}?"
        answer = await context.ask(text, options=(ALLOW, ALWAYS, DENY), kind="approval")
        if answer == DENY:
            raise RequestError(f"a person denied this call of {tool}", param="tool", code="denied")
        if answer == ALWAYS:
            self.approved.add(tool)

    @property
    def open(self) -> list[Question]:
        """The questions that wait, oldest first."""
        return [question for question, waiting in self._waiting.values() if not waiting.done()]

    def answer(self, question_id: str, answer: str) -> None:
        """Give an answer. Raises `RequestError` for no such question, and for an answer that is none of its options."""
        if question_id not in self._waiting:
            raise unknown_name("question", question_id, list(self._waiting))
        question, waiting = self._waiting[question_id]
        check_answer(question, answer)
        if not waiting.done():
            waiting.set_result(answer)


def question_id(run: str, step: str, call: str) -> str:
    """Return the id of a question by its call's number: equal when the run is resumed, and unlike all others."""
    return f"q-{blake2b(f'{run}/{step}/{call}'.encode(), digest_size=6).hexdigest()}"


def check_answer(question: Question, answer: str) -> None:
    """Raise `RequestError` for an answer that is none of the question's options."""
    if question.options and answer not in question.options:
        text = f"the answer to {question.text!r:.200} is one of {', '.join(question.options)}, got {answer!r:.80}"
        raise RequestError(text, param="answer")


def _unanswered(question: Question) -> str:
    answers = f" ({', '.join(question.options)})" if question.options else ""
    return (
        f"the run needs an answer: {question.text}{answers}; run it at a terminal, or let runs wait "
        "(fleet.questions = wait) and answer with Fleet.answer"
    )
