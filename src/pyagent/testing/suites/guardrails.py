"""What every guardrail must do.

    class TestNoKeys(GuardrailConformance):
        passes = ("What is the time?",)
        refuses = ("Use the key sk-1.",)

        def make(self):
            return NoKeys()

A text is given as a task, as the argument `text` of a tool's call and as a result, to those checks that there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from pyagent.core.errors import GuardrailError, PyAgentError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.guardrails import Check, Guardrail
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import JsonObject
from pyagent.testing.backends import EchoBackend
from pyagent.testing.suites.checks import check_host_takes, run

CHECKS: tuple[Check, ...] = ("check_task", "check_call", "check_output")
_ODD_TEXTS = ("?", "\x00", "word " * 4_000)


class GuardrailConformance:
    """Derive from it; `passes` are texts that it lets through, `refuses` some that it does not."""

    passes: ClassVar[Sequence[str]] = ()
    refuses: ClassVar[Sequence[str]] = ()

    def make(self) -> Guardrail:
        """Return a new guardrail."""
        raise NotImplementedError

    def test_host_takes_the_guardrail(self) -> None:
        """It has a name, and one check or more, each async and of the right arguments."""
        check_host_takes("guardrails", [self.make()])
        assert self.passes, "`passes` is empty: nothing would be tested"
        assert self.refuses, "`refuses` is empty: nothing would be tested"

    def test_right_texts_pass(self) -> None:
        """What is right passes every check there is."""
        for text in self.passes:
            for check in self._checks():
                refusal = run(_refusal(self.make(), check, text))
                assert refusal is None, f"{check} refuses {text!r:.80}: {refusal}"

    def test_wrong_texts_are_refused_in_a_sentence(self) -> None:
        """What is wrong is refused by one check at least, with a reason of one line, and not by a fault."""
        for text in self.refuses:
            reasons = [reason for check in self._checks() if (reason := run(_refusal(self.make(), check, text)))]
            assert reasons, f"{text!r:.80} passes"
            for reason in reasons:
                assert "it failed:" not in reason, f"it does not refuse {text!r:.80}, it fails: {reason}"
                assert "\n" not in reason.strip(), f"its reason has several lines: {reason!r:.120}"

    def test_odd_texts_are_looked_at(self) -> None:
        """Whatever text comes, the guardrail says something of it: one that fails refuses everything."""
        for text in _ODD_TEXTS:
            for check in self._checks():
                reason = run(_refusal(self.make(), check, text))
                assert reason is None or "it failed:" not in reason, f"{check} of {text[:20]!r}: {reason}"

    def test_what_it_looks_at_is_left_as_it_is(self) -> None:
        """It looks, and changes nothing: the tool and the caller get what was there."""
        for text in self.passes:
            given: list[object] = []
            run(_refusal(self.make(), "check_call", text, given))
            assert given == [{"text": text}], f"a tool was given {given!r:.80} in place of {text!r:.80}"

    def test_tasks_at_once_are_told_apart(self) -> None:
        """Looking at several at the same time, it refuses those that are wrong and no other."""
        guardrail = self.make()
        check = self._checks()[0]
        texts = [*self.passes, *self.refuses] * 4

        async def work() -> list[bool]:
            found = await asyncio.gather(*(_refusal(guardrail, check, text) for text in texts))
            return [reason is None for reason in found]

        alone = [run(_refusal(self.make(), check, text)) is None for text in texts]
        assert run(work()) == alone

    def _checks(self) -> list[Check]:
        guardrail = self.make()
        return [check for check in CHECKS if hasattr(guardrail, check)]


async def _refusal(guardrail: Guardrail, check: Check, text: str, given: list[object] | None = None) -> str | None:
    """Return why a run is refused that has the text where the check looks; None where it passes."""
    calls: list[object] = [] if given is None else given

    async def call(arguments: JsonObject) -> str:
        calls.append(arguments)
        return "done"

    tool = FleetTool("tool", "A tool.", {"properties": {"text": {"type": "string"}}}, call)
    fleet = Fleet(EchoBackend(), [_Subject(check, text)], [tool], guardrails=[guardrail], approved_tools=["*"])
    try:
        await fleet.run_agent("subject", text if check == "check_task" else "go")
    except GuardrailError as error:
        return str(error) if error.guardrail == guardrail.name else None
    except PyAgentError as error:
        raise AssertionError(f"the run ends with something else than a refusal: {error}") from error
    return None


class _Subject:
    """An agent that has the text where a check looks."""

    name = "subject"
    description = "Does what a guardrail looks at."

    def __init__(self, check: Check, text: str) -> None:
        self._check = check
        self._text = text

    async def run(self, context: Context, task: Task) -> str:
        if self._check == "check_call":
            return str(await context.call_tool("tool", {"text": self._text}))
        return self._text if self._check == "check_output" else "done"
