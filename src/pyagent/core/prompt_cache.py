"""Queries of a backend's prompt cache: view it, explain a prompt, pin and unpin prompts.

Backends with a prompt cache of their own answer them (`capabilities.query_cache`). The same values cross to an engine
in a process of its own.
"""

from __future__ import annotations

import msgspec

from pyagent.core.messages import CacheReport, ChatRequest


class ViewCache(msgspec.Struct, frozen=True, tag=True):
    """List the cached prompts of tenants, at most `limit` of each model, the last used first."""

    limit: int = 20
    tenants: tuple[str, ...] = ("",)


class ExplainPrompt(msgspec.Struct, frozen=True, tag=True):
    """Report how much of a request's prompt is cached, and why not more. Computes nothing."""

    request: ChatRequest


class PinPrompt(msgspec.Struct, frozen=True, tag=True):
    """Compute the common prefix of requests that begin with these messages, and pin it under a name.

    It belongs to the request's tenant; all tenants share what belongs to `COMMON_TENANT`.
    """

    name: str
    request: ChatRequest


class UnpinPrompt(msgspec.Struct, frozen=True, tag=True):
    """Remove a tenant's pin; the prompt may be evicted again."""

    name: str
    tenant: str = ""


CacheQuery = ViewCache | ExplainPrompt | PinPrompt | UnpinPrompt


class CachedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt in the cache, up to its last block. `state`: used, pinned, retained, demoted or cached.

    `key` is a hash of all its tokens (`engine.prefix_hash`).
    """

    key: str
    begins: str
    ends: str
    num_tokens: int
    num_pages: int
    state: str
    idle_seconds: float
    num_hits: int
    sessions: list[str] = []


class CachePages(msgspec.Struct, frozen=True, kw_only=True):
    """What all tenants together have in a model's prompt cache: pages by use, and tokens looked up since its load."""

    num_pages: int
    page_bytes: int
    used_pages: int
    cached_pages: int
    pinned_pages: int
    retained_pages: int
    demoted_pages: int
    hit_tokens: int
    queried_tokens: int
    evictions: dict[str, int] = {}
    session_bytes: int = 0


class ModelCache(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt cache of one model: pins and prompts of the tenants in the query.

    `pages` are counts of all tenants; None for clients that may not know how much others use.
    """

    model: str
    pages: CachePages | None = None
    pins: dict[str, int] = {}
    prompts: list[CachedPrompt] = []


class CacheQueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """`models` of a view, `report` of an explanation, `num_tokens` that a pin holds or held."""

    models: list[ModelCache] = []
    report: CacheReport | None = None
    num_tokens: int = 0
