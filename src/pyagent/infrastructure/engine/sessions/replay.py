"""What the engine's processes computed of conversations, kept on this side for the next process.

A process that dies takes its conversations' token logs with it. The last answered turns are kept here, within a bound;
a request that follows one of another process takes the turn along, so that its prompt is the tokens it would have been.
Knows messages and tokens, neither tokenizers nor processes. Used by one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyagent.core.lru import ByteBoundedLru
from pyagent.core.messages import ChatRequest, Message
from pyagent.infrastructure.engine.request import PastTurn
from pyagent.infrastructure.engine.sessions.turns import conversation_keys, next_key

_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    turn: PastTurn
    process_id: int

    @property
    def num_bytes(self) -> int:
        return len(self.turn.prompt) + 8 * len(self.turn.tokens) + 4 * len(self.turn.answer)


class ReplayStore:
    """Answered turns by conversation; those used longest ago go first."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._turns: ByteBoundedLru[bytes, _Kept] = ByteBoundedLru(lambda num_bytes: num_bytes <= max_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of all turns."""
        return self._turns.num_bytes

    def keep(self, request: ChatRequest, prompt: bytes, tokens: tuple[int, ...], answer: str, process_id: int) -> None:
        """A request was answered in a process."""
        if not request.messages:
            return
        answer = request.assistant_prefix + request.answer_prefix + answer
        key = _key(request, next_key(_keys(request)[-1], Message("assistant", answer)))
        kept = _Kept(
            PastTurn(
                len(request.messages) + 1, prompt, tokens, answer, request.assistant_prefix, request.answer_prefix
            ),
            process_id,
        )
        self._turns.put(key, kept, kept.num_bytes)

    def before(self, request: ChatRequest, process_id: int) -> PastTurn | None:
        """The longest turn that a request follows, when another process computed it."""
        if not self._turns:
            return None
        for key in reversed(_keys(request)[:-1]):
            kept = self._turns.get(_key(request, key))
            if kept is not None:
                return None if kept.process_id == process_id else kept.turn
        return None


def _keys(request: ChatRequest) -> list[bytes]:
    return conversation_keys(request.messages, request.tools, request.origin.tenant)


def _key(request: ChatRequest, key: bytes) -> bytes:
    """A conversation is one with one model, of one session."""
    return key + f"{request.model}\0{request.session or ''}".encode(errors="surrogatepass")
