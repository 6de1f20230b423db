"""Turns of conversations that earlier engine processes computed, for the next process to replay.

A process that dies takes its token logs with it, and a copy of an engine does not have those of another. The last
answered turns are stored here, within a bound; a request that continues a turn of another process is sent with that
turn, so that its prompt has the tokens it would have had.
Knows messages and tokens, neither tokenizers nor processes. Safe from any thread: copies of an engine share one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from pyagent.core.lru import ByteBoundedLru
from pyagent.core.messages import ChatRequest, Message
from pyagent.infrastructure.engine.request import PastTurn
from pyagent.infrastructure.engine.sessions.turns import conversation_keys, next_key

_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    turn: PastTurn
    process_id: int

    @property
    def num_bytes(self) -> int:
        return len(self.turn.prompt) + 8 * len(self.turn.tokens) + 4 * len(self.turn.answer)


class ReplayStore:
    """Answered turns by conversation; the least recently used are evicted first."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._turns: ByteBoundedLru[bytes, _Entry] = ByteBoundedLru(lambda num_bytes: num_bytes <= max_bytes)
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all turns."""
        return self._turns.num_bytes

    def put(self, request: ChatRequest, prompt: bytes, tokens: tuple[int, ...], answer: str, process_id: int) -> None:
        """Store the turn of a request that a process answered."""
        if not request.messages:
            return
        answer = request.assistant_prefix + request.answer_prefix + answer
        key = _key(request, next_key(_keys(request)[-1], Message("assistant", answer)))
        entry = _Entry(
            PastTurn(
                len(request.messages) + 1, prompt, tokens, answer, request.assistant_prefix, request.answer_prefix
            ),
            process_id,
        )
        with self._lock:
            self._turns.put(key, entry, entry.num_bytes)

    def before(self, request: ChatRequest, process_id: int) -> PastTurn | None:
        """Return the longest turn that a request continues, when another process computed it."""
        if not self._turns:
            return None
        for key in reversed(_keys(request)[:-1]):
            with self._lock:
                entry = self._turns.get(_key(request, key))
            if entry is not None:
                return None if entry.process_id == process_id else entry.turn
        return None


def _keys(request: ChatRequest) -> list[bytes]:
    return conversation_keys(request.messages, request.tools, request.origin.tenant, request.chat_template_kwargs)


def _key(request: ChatRequest, key: bytes) -> bytes:
    """Return a conversation's key, for one model and one session; what else a prompt tells a model is a part of it."""
    told = msgspec.json.encode((request.reasoning_effort, request.tool_choice, request.parallel_tool_calls))
    return key + told + f"{request.model}\0{request.session or ''}".encode(errors="surrogatepass")
