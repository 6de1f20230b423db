"""One model's prompt cache: take hints, pin prompts, explain misses, list contents.

Turns names and messages into tokens, which is all that the block pool knows. A hint about an unknown session or run is
ignored, as is one that the pool cannot use: hints never fail. Safe from any thread; the pool has its own lock. Names
belong to a tenant (`Origin.tenant`): no tenant sees or unpins another's prompts.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, cast

from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.lru import ByteBoundedLru
from pyagent.core.messages import CacheMiss, CacheReport, Hint, Message, Tool
from pyagent.core.prompt_cache import CachedPrompt, CachePages, ModelCache
from pyagent.core.runners.batch import BLOCK_TOKENS, PrefixKey
from pyagent.infrastructure.engine.sessions.cache_miss import explain_miss
from pyagent.infrastructure.engine.sessions.prompt_normalization import NormalizedPrompt
from pyagent.infrastructure.engine.sessions.sessions import Prompt, Sessions
from pyagent.infrastructure.engine.sessions.turns import conversation_keys

if TYPE_CHECKING:
    from pyagent import _rust
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.memory.ledger import Reservation
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

Reason = Literal["cold", "evicted"]
_MAX_PREFIXES = 64
_OWN_BYTES = 350
"""What an entry takes beside its tokens, as measured."""
_SHOWN_CHARS = 60


class ModelPrompts:
    """Hints, pins and views over one model's token logs and block pool."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        sessions: Sessions,
        runner: ModelRunner,
        *,
        memory: Reservation,
        normalize: Callable[[Sequence[Message]], NormalizedPrompt],
    ) -> None:
        """`normalize` is applied to a conversation before it is rendered; `memory` reserves the bytes of prefixes."""
        self._tokenizer = tokenizer
        self._normalize = normalize
        self._sessions = sessions
        self._pool = runner.pool
        self._page_bytes = runner.info.page_bytes
        self._lock = threading.Lock()
        self._prefixes: ByteBoundedLru[bytes, array[int]] = ByteBoundedLru(memory.try_resize, _MAX_PREFIXES)
        self._run_to_names: dict[tuple[str, str], set[str]] = {}
        self._pins: dict[tuple[str, str], int] = {}
        self._adapter_names: dict[str, set[str]] = {}

    # -- hints --------------------------------------------------------------------------------------------------------

    def take(self, hint: Hint, adapter_ids: Sequence[int] = ()) -> None:
        """Apply a hint, to what the bare model and these adapters computed. May render and tokenise."""
        if hint.run:
            self._apply_to_run(hint, adapter_ids)
            return
        tokens, tenant = self._sessions.tokens_of(hint.session, hint.tenant), hint.tenant
        name = _session_name(tenant, hint.session)
        match hint.kind:
            case "retain" if tokens:
                self._retain(name, tokens, hint, adapter_ids)
            case "demote" if tokens:
                self._forget(name)
                num_prefix = len(self._prefix_or_none(hint.messages, hint.tenant))
                for adapter_id in (0, *adapter_ids):
                    self._pool.demote(tokens, keep_tokens=num_prefix, adapter_id=adapter_id, tenant=tenant)
            case _:
                self._forget(name)

    def _retain(self, name: str, tokens: Sequence[int], hint: Hint, adapter_ids: Sequence[int]) -> None:
        """Retain what the bare model computed of a prompt, and what adapters did."""
        of_adapters = {f"{name} adapter {adapter_id:x}": adapter_id for adapter_id in adapter_ids}
        for each, adapter_id in {name: 0, **of_adapters}.items():
            self._pool.retain(
                each, tokens, adapter_id=adapter_id, tenant=hint.tenant, expected_seconds=hint.expected_seconds
            )
        with self._lock:
            self._adapter_names.setdefault(name, set()).update(of_adapters)

    def _forget(self, name: str) -> None:
        with self._lock:
            names = self._adapter_names.pop(name, set())
        for each in {name} | names:
            self._pool.forget(each)

    def _apply_to_run(self, hint: Hint, adapter_ids: Sequence[int]) -> None:
        """Apply a hint about the prefix of a run's prompts, or about the whole run."""
        if hint.messages and hint.kind == "retain":
            tokens = self._prefix_or_none(hint.messages, hint.tenant)
            name = f"run {hint.tenant}/{hint.run} {conversation_keys(hint.messages, ())[-1].hex()}"
            self._retain(name, tokens, hint, adapter_ids)
            with self._lock:
                self._run_to_names.setdefault((hint.tenant, hint.run), set()).add(name)
        elif hint.kind == "release":
            with self._lock:
                names = self._run_to_names.pop((hint.tenant, hint.run), set())
            sessions = self._sessions.names(f"{hint.run}/", hint.tenant)
            names |= {_session_name(hint.tenant, session) for session in sessions}
            for name in names:
                self._forget(name)

    def _prefix_or_none(self, messages: Sequence[Message], tenant: str) -> list[int]:
        try:
            return self._prefix(messages, (), tenant) if messages else []
        except RequestError:
            return []

    def _prefix(self, messages: Sequence[Message], tools: Sequence[Tool], tenant: str) -> list[int]:
        """Return the tokens common to all of a tenant's conversations that begin with these messages."""
        messages = self._normalize(messages).messages
        key = conversation_keys(messages, tools, tenant)[-1]
        with self._lock:
            if (known := self._prefixes.get(key)) is not None:
                return known.tolist()
        ends_with_question = bool(messages) and messages[-1].role == "user"
        follows = [Message("assistant" if ends_with_question else "user", text) for text in "ab"]
        question = [Message("user", ".")] if ends_with_question else []
        rendered = [self._tokenizer.render_chat([*messages, follow, *question], tools) for follow in follows]
        first, second = (self._tokenizer.encode_rendered(text, tenant) for text in rendered)
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
        tokens = [token for token, _ in alike]
        compact = array("I", tokens)
        with self._lock:
            self._prefixes.put(key, compact, _OWN_BYTES + compact.itemsize * len(compact))
        return tokens

    # -- queries -----------------------------------------------------------------------------------------------------

    def pin(
        self, name: str, messages: Sequence[Message], tools: Sequence[Tool], tenant: str, adapter_id: int = 0
    ) -> int:
        """Pin the cached blocks of the prefix that these messages make; return how many tokens they hold.

        Raises `RequestError` when the messages fill no block, `CapacityError` when too much is pinned already.
        """
        tokens = self._prefix(messages, tools, tenant)
        if len(tokens) < BLOCK_TOKENS:
            text = (
                f"the messages have {len(tokens)} tokens, less than a block of {BLOCK_TOKENS}: there is nothing to pin"
            )
            raise RequestError(text, param="messages")
        try:
            num_tokens = self._pool.pin(f"{tenant}/{name}", tokens, adapter_id=adapter_id, tenant=tenant)
        except ValueError as error:
            raise CapacityError(str(error).replace(f"{tenant}/{name}", name)) from error
        with self._lock:
            self._pins[tenant, name] = num_tokens
        return num_tokens

    def forget_pins(self) -> None:
        """Drop all pins, after the pool was emptied."""
        with self._lock:
            self._pins.clear()

    def unpin(self, name: str, tenant: str) -> int:
        """Remove a tenant's pin; return how many tokens it held."""
        with self._lock:
            self._pool.unpin(f"{tenant}/{name}")
            return self._pins.pop((tenant, name), 0)

    def explain(self, prompt: Prompt, key: PrefixKey) -> CacheReport:
        """Return what a request with this prompt would find in the cache now."""
        num_cached, _, reason = self._pool.explain(
            prompt.tokens, adapter_id=key.adapter_id, media_hash=key.media_hash, tenant=key.tenant
        )
        miss = explain_miss(prompt, num_cached, BLOCK_TOKENS, self._tokenizer)
        if miss is None and reason in {"cold", "evicted"}:
            found = self._tokenizer.shown(prompt.tokens[num_cached : num_cached + BLOCK_TOKENS])
            miss = CacheMiss(reason=cast("Reason", reason), position=num_cached, found=found[:_SHOWN_CHARS])
        return CacheReport(
            prompt_tokens=len(prompt.tokens),
            cached_tokens=num_cached,
            log_tokens=prompt.num_log_tokens,
            note=prompt.note,
            normalized=list(prompt.normalized.names),
            miss=miss,
        )

    def view(self, model: str, limit: int, tenants: Sequence[str]) -> ModelCache:
        """Return what is cached now: counts of all tenants, texts and names of the given ones."""
        stats = self._pool.stats()
        with self._lock:
            pins = {name: num_tokens for (tenant, name), num_tokens in self._pins.items() if tenant in tenants}
        pages = CachePages(
            num_pages=stats.num_pages,
            page_bytes=self._page_bytes,
            used_pages=stats.active,
            cached_pages=stats.cached,
            pinned_pages=stats.pinned,
            retained_pages=stats.retained,
            demoted_pages=stats.demoted,
            hit_tokens=stats.hits_tokens,
            queried_tokens=stats.queried_tokens,
            evictions=stats.evictions_by_cause,
            session_bytes=self._sessions.num_bytes,
        )
        prompts = [self._shown(prefix) for prefix in self._pool.prefixes(limit, tenants=tenants)]
        return ModelCache(model=model, pages=pages, pins=pins, prompts=prompts)

    def _shown(self, prefix: _rust.CachedPrefix) -> CachedPrompt:
        text = self._tokenizer.shown(prefix.tokens)
        return CachedPrompt(
            key=prefix.key,
            begins=text[:_SHOWN_CHARS],
            ends=text[-_SHOWN_CHARS:],
            num_tokens=len(prefix.tokens),
            num_pages=prefix.num_pages,
            state=prefix.state,
            idle_seconds=prefix.idle_seconds,
            num_hits=prefix.hits,
            sessions=self._sessions.names_of(prefix.tokens, prefix.tenant),
        )


def _session_name(tenant: str, session: str) -> str:
    """Return the name a conversation is retained under; a tenant's name has no slash."""
    return f"session {tenant}/{session}"
