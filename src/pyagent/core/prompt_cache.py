"""Looking into a backend's prompt cache, and keeping prompts there: the questions and the answers.

Backends that compute prompts themselves may take these questions (`capabilities.query_cache`); others need not. The
same values cross to an engine in a process of its own.
"""

from __future__ import annotations

import msgspec

from pyagent.core.messages import CacheReport, ChatRequest


class ViewCache(msgspec.Struct, frozen=True, tag=True):
    """What is kept of these tenants? At most so many prompts of each model, last used first."""

    limit: int = 20
    tenants: tuple[str, ...] = ("",)


class ExplainPrompt(msgspec.Struct, frozen=True, tag=True):
    """How much of this request would be found, and why not more? Nothing is computed."""

    request: ChatRequest


class PinPrompt(msgspec.Struct, frozen=True, tag=True):
    """Compute what requests that begin with these messages have in common, and keep it under this name.

    It is the request's tenant's; that of `COMMON_TENANT` is found by all.
    """

    name: str
    request: ChatRequest


class UnpinPrompt(msgspec.Struct, frozen=True, tag=True):
    """Keep what this tenant pinned under this name no longer than anything else."""

    name: str
    tenant: str = ""


CacheQuery = ViewCache | ExplainPrompt | PinPrompt | UnpinPrompt


class KeptPrompt(msgspec.Struct, frozen=True, kw_only=True):
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
    asked_tokens: int
    evictions: dict[str, int] = {}
    session_bytes: int = 0


class ModelCache(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt cache of one model: pins and prompts of the tenants asked for.

    `pages` are counts of all tenants, and None for who may not know how much others ask.
    """

    model: str
    pages: CachePages | None = None
    pins: dict[str, int] = {}
    prompts: list[KeptPrompt] = []


class CacheQueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: `models` for a view, `report` for an explanation, `num_tokens` kept by a pin or an unpin."""

    models: list[ModelCache] = []
    report: CacheReport | None = None
    num_tokens: int = 0
