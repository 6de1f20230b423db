"""An answer broken off in the middle goes on elsewhere: what the caller has been told, and what the next link is asked.

A link that `continues` is asked to go on exactly from the text told, by `answer_prefix` or a last assistant message.
Any other is asked in words to go on, and to repeat the last words first: so where its text joins is found, and nothing
is lost or doubled. A tool call that was told is never asked for again; so one is told when it is whole where another
link could take over, since half a call could neither be continued nor taken back. Pure but for the deltas that pass
through.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pyagent.core.chain.attempt import Attempt
from pyagent.core.chain.failures import reason_of
from pyagent.core.chain.link import Link
from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatDelta, ChatRequest, FailedAttempt, Message, Resumption, Usage
from pyagent.core.tool_call_deltas import WholeToolCalls

AfterFirstToken = Literal["continue", "restart", "error"]
_ANCHOR_CHARS = 60
_OPENERS = " \t\r\n\"'“”«…."
_ASK = (
    "Your answer above was cut off. Go on with it exactly where it stops: first repeat its last words, which are\n"
    "{anchor}\nand then write the rest of it. Add nothing else."
)


@dataclass(slots=True)
class DeliveredAnswer:
    """What was delivered to the caller of an answer so far."""

    request: ChatRequest
    policy: AfterFirstToken
    text: str = ""
    num_pieces: int = 0
    has_calls: bool = False
    is_begun: bool = False
    resumed: Resumption | None = None
    _pieces: list[str] = field(default_factory=list[str])

    def break_off(self, attempt: Attempt, error: Exception) -> None:
        """Record that a link broke off; raise its error when the answer cannot continue elsewhere."""
        if not self.is_begun:
            return
        reason = reason_of(error.__cause__) if isinstance(error.__cause__, Exception) else reason_of(error)
        self.text += "".join(self._pieces)
        self._pieces.clear()
        if obstacle := self._obstacle():
            if self.policy == "error" or not isinstance(error, BackendError):
                raise error
            raise BackendError(f"{error}; {obstacle}", backend=attempt.name, status=error.status) from error
        is_void = self.policy == "restart" or self._has_prompt
        kind: Literal["continue", "restart"] = "restart" if is_void else "continue"
        self.resumed = Resumption(kind, attempt.name, reason)
        if kind == "restart":
            self.text, self.num_pieces, self.has_calls, self.is_begun = "", 0, False, False

    def _obstacle(self) -> str:
        if self.policy == "error":
            return "rules.after_first_token is `error`"
        if self.request.whole:
            return ""  # nothing has been delivered yet
        if self._has_prompt:
            return "an answer that says something of its prompt does not go on elsewhere"
        if self.request.n > 1 or self.request.best_of is not None or self.request.beam is not None:
            return "several answers do not go on elsewhere"
        return "it does not go on elsewhere, as a tool call was told already" if self.has_calls else ""

    @property
    def _has_prompt(self) -> bool:
        """Whether the answer repeats, scores or counts out its prompt, which a link that goes on would do again."""
        sampling = self.request.sampling
        return sampling.echo or sampling.return_token_ids or sampling.prompt_logprobs is not None

    def is_taken_by(self, link: Link) -> bool:
        """Return whether a link can continue the answer: structured output, or one with logprobs, only exactly."""
        if not self.text or not self.request.messages or link.continues:
            return True
        wanted = self.request.response_format
        is_structured = wanted is not None and wanted.type != "text"
        return not is_structured and self.request.sampling.top_logprobs is None

    @property
    def is_full(self) -> bool:
        """Return whether all tokens asked for were delivered, so that only the end is missing."""
        most = self.request.sampling.max_tokens
        return bool(self.text) and most is not None and self.num_pieces >= most

    def request_for(self, link: Link) -> ChatRequest:
        """Return what to ask a link: the request, or the rest of its answer."""
        request = self.request
        if not self.text:
            return request if link.takes_prefix else _with_message(request)
        if request.messages and link.counts_prefix:
            return msgspec.structs.replace(request, answer_prefix=request.answer_prefix + self.text)
        most = request.sampling.max_tokens
        if most is not None:
            most = max(1, most - self.num_pieces)
        sampling = msgspec.structs.replace(request.sampling, max_tokens=most)
        if not request.messages and not request.prompt_token_ids:
            return msgspec.structs.replace(request, prompt=(request.prompt or "") + self.text, sampling=sampling)
        if link.continues:
            prefix = request.answer_prefix + self.text
            begun = msgspec.structs.replace(request, answer_prefix=prefix, sampling=sampling)
            return begun if link.takes_prefix else _with_message(begun)
        ask = Message("user", _ASK.format(anchor=anchor_of(self.text)))
        messages = [*request.messages, Message("assistant", self.text), ask]
        return msgspec.structs.replace(request, messages=messages, sampling=sampling)

    async def deltas(self, attempt: Attempt, attempts: list[FailedAttempt]) -> AsyncGenerator[ChatDelta, None]:
        """Return an attempt's deltas as the caller gets them, and record them."""
        needs_seam = bool(self.text) and bool(self.request.messages) and not attempt.link.continues
        seam = Seam(self.text) if needs_seam else None
        num_before, resumed, self.resumed = self.num_pieces if self.text else 0, self.resumed, None
        if resumed is not None:
            stats = attempt.link.stats
            stats.num_continued += resumed.kind == "continue"
            stats.num_restarted += resumed.kind == "restart"
        can_go_on = not self._obstacle()
        calls = WholeToolCalls() if can_go_on and not attempt.is_final and not self.request.whole else None
        async with aclosing(attempt.rest(attempts, resumed, can_go_on=can_go_on)) as stream:
            async for delta in stream:
                told = delta if seam is None else _joined(delta, seam)
                told = told if calls is None else calls.held(told)
                if num_before and told.usage and not attempt.link.counts_prefix:
                    told = msgspec.structs.replace(told, usage=_with_told(told.usage, num_before))
                self._note(told)
                yield told

    def _note(self, delta: ChatDelta) -> None:
        self.is_begun = True
        if delta.content:
            self._pieces.append(delta.content)
            self.num_pieces += 1
        if delta.tool_calls:
            self.has_calls = True


def _with_message(request: ChatRequest) -> ChatRequest:
    """Return the request with its answer's beginning as a last message."""
    begun = request.assistant_prefix + request.answer_prefix
    if not begun:
        return request
    messages = [*request.messages, Message("assistant", begun)]
    return msgspec.structs.replace(request, messages=messages, assistant_prefix="", answer_prefix="")


def anchor_of(text: str) -> str:
    """Return the last words of a text, enough to find them again."""
    tail = text[-_ANCHOR_CHARS:]
    cut = tail.find(" ")
    return tail if len(tail) == len(text) or cut < 0 or cut > _ANCHOR_CHARS // 2 else tail[cut + 1 :]


class Seam:
    """Finds where a text that was asked to repeat the last words of another goes on, piece by piece.

    Takes the repeated words away, or all of the other text where that was repeated; a text that begins with neither is
    taken to go on at once. Texts are held back until that is decided.
    """

    def __init__(self, told: str) -> None:
        self._targets = list(dict.fromkeys((anchor_of(told), told)))
        self._held = ""
        self._is_found = False

    def push(self, piece: str, *, is_last: bool = False) -> str:
        """Return what of the text so far is known to be new; with `is_last` nothing is held back."""
        if self._is_found:
            return piece
        self._held += piece
        is_open = False
        for text in (self._held, self._held.lstrip(_OPENERS)):
            for target in self._targets:
                rest = _after(text, target)
                if rest is not None and (rest or is_last or text == target):
                    return self._found(rest)
                is_open = is_open or rest == "" or target.startswith(text)
        return self._found(self._held) if is_last or not is_open else ""

    def _found(self, rest: str) -> str:
        self._is_found, self._held = True, ""
        return rest


def _after(text: str, target: str) -> str | None:
    """Return what follows `target` in a text that begins with it, ignoring spaces at its end; else None."""
    if text.startswith(target):
        return text[len(target) :]
    core = target.rstrip()
    if core != target and core and text.startswith(core) and not target.startswith(text):
        return text[len(core) :].lstrip()
    return None


def _joined(delta: ChatDelta, seam: Seam) -> ChatDelta:
    content = seam.push(delta.content, is_last=delta.finish_reason is not None)
    return delta if content == delta.content else msgspec.structs.replace(delta, content=content)


def _with_told(usage: Usage, num_told: int) -> Usage:
    """Return the usage of a whole answer from that of its rest: tokens delivered before count as output."""
    return msgspec.structs.replace(
        usage,
        prompt_tokens=max(0, usage.prompt_tokens - num_told),
        completion_tokens=usage.completion_tokens + num_told,
    )
