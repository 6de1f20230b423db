"""Loads a prompt's KV from elsewhere before its request is submitted, where that is sooner than to compute it.

Never later than by computing: what is not there in the time that computing would have taken is computed. A connector's
failure, whatever it is, is no request's: it is counted, and named in the log once for each kind.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.kv_connector import (
    KvConnector,
    KvLayers,
    KvMatch,
    KvPrompt,
    KvRefusedError,
    is_worth_loading,
)
from pyagent.infrastructure.engine.kv_moves.progress import LayerProgress
from pyagent.infrastructure.engine.kv_moves.transfers import IncomingKv, KvTransfers
from pyagent.infrastructure.engine.stats import KvMoveStats

if TYPE_CHECKING:
    from pyagent.core.messages import ChatRequest
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger(__name__)

_FEWEST_TOKENS = 4 * BLOCK_TOKENS
"""Fewer than these are computed without a question: a step takes about as long with them as without."""
_LEAST_SECONDS = 0.05
_UNMEASURED_SECONDS = 2.0
"""How long a question may take while nothing was computed here."""
_UNMEASURED_LOAD_SECONDS = 30.0
"""How long a load may take while only the source says what computing takes: it may say anything."""


class KvLoader:
    """Loads the KV of one model's prompts."""

    def __init__(self, model: str, transfers: KvTransfers, connector: KvConnector) -> None:
        self._model = model
        self._transfers = transfers
        self._connector = connector
        self._loading: dict[tuple[object, ...], asyncio.Future[None]] = {}
        self._told: set[str] = set()
        self._moved = KvMoveStats()

    async def load(self, chat: ChatRequest, request: Request) -> None:
        """Bring what is worth it of a request's prompt into the prefix cache. Raises nothing of its own."""
        if not may_move(chat, request) or len(request.tokens) <= _FEWEST_TOKENS:
            return
        whole = (len(request.tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        tokens = request.tokens[:whole]
        try:
            num_local = await asyncio.to_thread(self._transfers.num_cached, tokens, request.key)
            if whole - num_local >= _FEWEST_TOKENS:
                await self._load(chat, request, tokens, num_local)
        except KvRefusedError as error:
            self._moved.refused += 1
            self._tell(error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._note_failure(error)  # something of the connector's was cancelled, not the request
        except Exception as error:  # noqa: BLE001 - a plugin's may be any
            self._note_failure(error)

    async def _load(self, chat: ChatRequest, request: Request, tokens: Sequence[int], num_local: int) -> None:
        token_seconds = self._transfers.token_seconds
        seconds = None if token_seconds is None else token_seconds * (len(tokens) - num_local)
        prompt = KvPrompt(self._model, tokens, request.key, chat, num_local, seconds)
        async with asyncio.timeout(self._question_seconds(seconds)):
            match = await self._connector.matched_tokens(prompt)
        if match is None or match.num_tokens > len(tokens):
            return
        match = replace(match, num_tokens=match.num_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
        if match.num_tokens - num_local < _FEWEST_TOKENS:
            return
        most_seconds = math.inf if token_seconds else _UNMEASURED_LOAD_SECONDS
        token_seconds = token_seconds or match.token_seconds
        if token_seconds is None or not is_worth_loading(match, num_local, token_seconds):
            self._moved.declined += 1
            return
        async with asyncio.timeout(min(most_seconds, (match.num_tokens - num_local) * token_seconds)):
            await self._load_once(prompt, match)

    def _question_seconds(self, seconds: float | None) -> float:
        patience = self._connector.patience
        return max(_UNMEASURED_SECONDS if seconds is None else seconds, _LEAST_SECONDS / patience) * patience

    async def _load_once(self, prompt: KvPrompt, match: KvMatch) -> None:
        """Load, or wait for another request that loads the same: a burst of agents has one beginning."""
        tokens = prompt.tokens[: match.num_tokens]
        which = (asyncio.get_running_loop(), prompt.key, array("I", tokens).tobytes())
        if (other := self._loading.get(which)) is not None:
            await asyncio.shield(other)
            return
        self._loading[which] = done = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        try:
            num_bytes = await self._receive(prompt, match, tokens)
        finally:
            del self._loading[which]
            done.set_result(None)
        if num_bytes:
            self._moved.note_loaded(match.num_tokens - prompt.num_local, num_bytes, time.perf_counter() - started)

    async def _receive(self, prompt: KvPrompt, match: KvMatch, tokens: Sequence[int]) -> int:
        """Return the bytes that came; 0 where there was no memory for them, or nothing is missing any more."""
        incoming = self._transfers.receive(tokens, prompt.key)
        try:
            if not await asyncio.to_thread(incoming.open) or not incoming.pages.wanted:
                return 0
            async with aclosing(self._connector.load(prompt, match, incoming.pages)) as layers:
                num_bytes = await self._write(incoming, layers)
            await asyncio.to_thread(incoming.finish)
            return num_bytes
        finally:
            # In a thread: it waits for a step, as all that touches pages. Shielded: a request that is cancelled while
            # it waits for a thread would leave its pages without an owner.
            await asyncio.shield(asyncio.to_thread(incoming.close))

    async def _write(self, incoming: IncomingKv, layers: AsyncGenerator[KvLayers, None]) -> int:
        """Write all layers of all pages, each once and in order. Raises `ValueError` for others; return the bytes."""
        shape = self._transfers.layout.shape
        progress = LayerProgress(shape.layers_per_page, len(incoming.pages.wanted), shape.layer_bytes)
        async for part in layers:
            num_pages = progress.take(part)
            await asyncio.to_thread(incoming.write, part, num_pages)
        progress.check_whole()
        return progress.num_bytes

    def save(self, chat: ChatRequest, request: Request) -> None:
        """Note that what a request has computed so far can be had here."""
        if not may_move(chat, request):
            return
        whole = (len(request.tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        try:
            self._connector.save(KvPrompt(self._model, request.tokens[:whole], request.key, chat, whole))
        except Exception as error:  # noqa: BLE001 - a plugin's may be any
            self._note_failure(error)

    def stats(self) -> KvMoveStats:
        """Return what was moved of the model's KV."""
        return msgspec.structs.replace(self._moved, bytes_sent=self._transfers.num_bytes_read)

    def _note_failure(self, error: BaseException) -> None:
        self._moved.failed += 1
        self._tell(error)

    def _tell(self, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        kind = f"{type(error).__name__} {text[:80]}"
        log = logger.debug if kind in self._told or len(self._told) >= _MAX_TOLD else logger.warning
        self._told.add(kind)
        log("KV of %s cannot be loaded, the prompt is computed: %s", self._model, text)


_MAX_TOLD = 20
"""Kinds of failure that are named in the log: a connector that fails each time must not fill it."""


def may_move(chat: ChatRequest, request: Request) -> bool:
    """Return whether a request's KV may come from elsewhere or go there.

    That of private requests stays where it is; a prompt whose log probabilities are wanted is computed.
    """
    key = request.key
    return not (chat.private or request.scores is not None or key.adapter_id or key.media_hash)
