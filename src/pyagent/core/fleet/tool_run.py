"""One call of a tool on behalf of an agent: allowed, begun once, and journalled; or answered from the journal.

A tool with an effect has an intent written before it runs, forced to the disk, and its outcome after. A resumed run
that finds an intent without outcome runs the tool again where that changes nothing more (`idempotent`, with the same
key), and asks a person where it might (`once`): it is never guessed. Where the intent cannot be written the tool does
not run, and the run ends: going on with it would have the effect again without a word.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, cast, get_type_hints

import msgspec

from pyagent.core.errors import AgentError, DeadlineError, PyAgentError, ReplayError, RequestError
from pyagent.core.fleet.containment import Call
from pyagent.core.fleet.events import ToolCalled, ToolStarted, Totals
from pyagent.core.fleet.guardrails import check
from pyagent.core.fleet.journal import PRIVATE_PREFIX
from pyagent.core.fleet.past import CANCELLED, asked_of, fault_of, is_restorable, restored, restored_error
from pyagent.core.fleet.people import ALWAYS
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import JsonObject

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

_MAX_SHOWN_CHARACTERS = 2_000
HAPPENED, HAPPENED_NOT = "yes", "no"
_key: ContextVar[str] = ContextVar("the idempotency key of the tool's call under way", default="")


def idempotency_key() -> str:
    """Return what a tool is to hand on with its request, so that a server takes it once: the call's own, also again."""
    return _key.get()


@dataclass(slots=True)
class ToolRun:
    """A call by its number among its agent's (`scopes`)."""

    context: Context
    tool: FleetTool
    arguments: JsonObject | msgspec.Struct
    call: str
    asked: str = ""

    async def output(self) -> object:
        """Return what the tool returns, or returned for this call before the run was resumed."""
        context, past = self.context, self.context.run.past
        self.asked = asked_of("tool", self.tool.name, self.arguments)
        past.check(context, self.call, f"the tool {self.tool.name}", self.asked)
        kept = past.tool_call(context, self.call)
        if kept is not None and self._can_give(kept):
            return self._kept(kept)
        await context.check_open()
        with context.scopes.within(f"{self.call}.guardrails"):
            await check(context.run.guardrails, "check_call", context, self.tool.name, self.arguments)
        await self._approve()
        attempt = past.num_attempts(context, self.call) + 1
        if attempt > 1 and self.tool.effect == "once" and await self._has_happened(attempt):
            self._tell(None, 0.0, None)
            return None
        await self._wait_for_turn()
        if self.tool.effect != "none":
            self._intend(attempt)
        return await self._run()

    def _can_give(self, kept: ToolCalled) -> bool:
        """Whether the output can be read back; raises `ReplayError` where it cannot, and the tool may not run again."""
        if self._was_told():
            return True
        try:
            restored(kept.output, self._output_type() if kept.error is None else object)
        except (TypeError, ValueError):  # its type changed
            can_give = False
        else:
            can_give = kept.is_restorable or kept.error is not None
        if not can_give and self.tool.effect == "once":
            context, name = self.context, self.tool.name
            raise ReplayError(
                f"{name} had its effect before the run was resumed, and what it returned cannot be read back as "
                "it was: declare the type that its function returns",
                agent=context.agent,
                step=context.step,
                call=self.call,
            )
        return can_give

    def _kept(self, kept: ToolCalled) -> object:
        context = self.context
        has_output = kept.error is None and not self._was_told()
        output = restored(kept.output, self._output_type()) if has_output else None
        if context.run.past.answer(context, f"{self.call}.approval.1") == ALWAYS:
            context.run.questions.approved.add(self.tool.name)
        context.usage.add(Totals(tool_calls=1))
        context.run.listener(kept)
        if kept.error is not None:
            raise restored_error(kept.fault, kept.error, context.agent)
        return output

    async def _approve(self) -> None:
        if self.tool.needs_approval:
            await self.tool.checked(self.arguments)  # before anybody is asked about a call that cannot be
            with self.context.scopes.within(f"{self.call}.approval"):
                await self.context.run.questions.approve(self.context, self.tool.name, self.arguments)

    def _was_told(self) -> bool:
        """Whether a person said that the call had happened, of which there is no output then, whatever its type."""
        context, past = self.context, self.context.run.past
        attempt = past.num_attempts(context, self.call) + 1
        return past.answer(context, f"{self.call}.effect{attempt}.1") == HAPPENED

    async def _has_happened(self, attempt: int) -> bool:
        shown = msgspec.json.encode(self.arguments, enc_hook=str).decode()
        if num_left := len(shown[_MAX_SHOWN_CHARACTERS:]):
            run = self.context.run.id
            left = f"and {num_left:,} characters more, which `pyagent runs show {run} --json` has in `tool_started`"
            shown = f"{shown[:_MAX_SHOWN_CHARACTERS]} [{left}]"
        text = (
            f"{self.context.agent} was interrupted while it called {self.tool.name} with {shown}; "
            f"did that happen? {HAPPENED_NOT} runs it again"
        )
        with self.context.scopes.within(f"{self.call}.effect{attempt}"):
            return await self.context.ask(text, options=(HAPPENED, HAPPENED_NOT), kind="effect") == HAPPENED

    async def _wait_for_turn(self) -> None:
        """Wait where the tool has a rate; a turn that comes too late is a failed call, on which the agent may go on."""
        try:
            await self.context.run.turns.of_tool(self.context, self.tool.name)
        except DeadlineError as error:
            self._tell(None, 0.0, str(error), fault_of(error))
            raise

    def _intend(self, attempt: int) -> None:
        context = self.context
        started = ToolStarted(
            run=context.run.id,
            step=context.step,
            agent=context.agent,
            tool=self.tool.name,
            arguments=self.arguments,
            call=self.call,
            asked=self.asked,
            key=self._key(),
            effect=self.tool.effect,
            attempt=attempt,
        )
        context.run.emit(started, is_forced=True)
        self._check_kept()

    def _check_kept(self) -> None:
        """End the run where its journal broke off: a private run, which nothing can resume, has none."""
        run, name = self.context.run, self.tool.name
        loss = "" if run.id.startswith(PRIVATE_PREFIX) else run.journal.loss(run.id)
        if loss:
            text = (
                f"{name} is not called: the journal of {run.id} cannot be written ({loss}), so that going on with the "
                f"run would call it again; make room, then resume {run.id}"
            )
            run.fatal = RequestError(text, param="run", code="not_kept")
            raise run.fatal

    def _key(self) -> str:
        context = self.context
        name = f"{context.run.id}/{context.step}/{context.agent}/{self.call}"
        begun_with = context.run.past.effect_key(context, self.call)
        return begun_with or blake2b(name.encode(), digest_size=16).hexdigest()

    async def _run(self) -> object:
        context, name = self.context, self.tool.name
        started = time.perf_counter()
        output, fault = cast("object", None), dict[str, object]()
        error_text: str | None = CANCELLED
        try:
            attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
            attributes |= {"gen_ai.tool.type": "function", "pyagent.step": context.step, "pyagent.call": self.call}
            with (
                context.run.hints.away(context.session, f"tool {name}"),
                context.run.span(f"execute_tool {name}", attributes, context.trace),
                context.scopes.within(self.call),
                self._settling(),
            ):
                # A tool with a context takes slots by what it calls; holding one here, it could wait for itself.
                async with nullcontext() if self.tool.takes_context else context.run.slots.slot():
                    _key.set(self._key())
                    output = await self._contained().result()
            error_text = None
        except PyAgentError as error:
            error_text, fault = str(error), fault_of(error)
            raise
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"
            text = f"the tool {name} failed: {error_text}"
            wrapped = AgentError(text, agent=context.agent)
            fault = fault_of(wrapped)
            raise wrapped from error
        finally:
            self._tell(output, time.perf_counter() - started, error_text, fault)
        return output

    def _settling(self) -> AbstractContextManager[None]:
        """Hold back questions that would end the run, unless the tool may ask one itself: its calls are kept."""
        has_effect = self.tool.effect != "none" and not self.tool.takes_context
        return self.context.run.questions.effect() if has_effect else nullcontext()

    def _contained(self) -> Call:
        return Call(
            what=f"the tool {self.tool.name}",
            start=lambda: self.tool.call(self.arguments, self.context),
            error_of=lambda text: AgentError(text, agent=self.context.agent),
            deadline=self.context.deadline,
        )

    def _tell(self, output: object, seconds: float, error: str | None, fault: dict[str, object] | None = None) -> None:
        context = self.context
        context.usage.add(Totals(tool_calls=1))
        context.run.emit(
            ToolCalled(
                run=context.run.id,
                step=context.step,
                agent=context.agent,
                tool=self.tool.name,
                arguments=self.arguments,
                output=output,
                seconds=seconds,
                error=error,
                call=self.call,
                asked=self.asked,
                fault=fault or {},
                is_restorable=is_restorable(output, self._output_type()),
            )
        )

    def _output_type(self) -> object:
        try:
            return get_type_hints(self.tool.function).get("return", object)
        except (NameError, TypeError, AttributeError):  # no function, or an annotation only a type checker can resolve
            return object
