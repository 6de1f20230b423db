"""KV that moves between engines: what a connector is asked for, and what an engine gives it to move.

The words are vLLM's. A connector is told of each model (`register`) and of what was computed (`save`), is asked before
a prompt is computed (`matched_tokens`), and brings its KV layer by layer (`load`). What fails costs time and nothing
else: the engine computes what does not come. Knows no network.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pyagent._rust import BlockPool
    from pyagent.core.messages import ChatRequest
    from pyagent.core.runners.batch import PrefixKey

KvGroups = tuple[tuple[str, int, int], ...]
"""Groups of layers, as in `RunnerInfo.kv_groups`."""


class KvShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a runner keeps KV. A page has `layers_per_page` layers of `layer_bytes` bytes, one after the other.

    `rope` tells in words what positions do to keys; `format` is the number of the order of bytes within a layer;
    `family` is a hash of what a plugin describes the model as, empty where none does.
    """

    kv_dtype: str
    num_kv_heads: int
    head_dim: int
    rope: str
    block_tokens: int
    groups: KvGroups
    layers_per_page: int
    layer_bytes: int
    format: int = 1
    family: str = ""


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What must be equal for an engine to go on from another one's KV. `weights` is a hash of the model's files."""

    weights: str
    shape: KvShape

    def difference(self, other: KvLayout) -> str:
        """Return the first field that the other has differently, and both values; empty when there is none."""
        pairs = [(name, getattr(self.shape, name), getattr(other.shape, name)) for name in KvShape.__struct_fields__]
        for name, own, others in (*pairs, ("weights", self.weights, other.weights)):
            if own != others:
                return f"{name} is {str(own)[:120]} here and {str(others)[:120]} there"
        return ""


@dataclass(frozen=True, slots=True)
class KvPrompt:
    """A prompt whose KV is wanted: `tokens` are those in whole blocks, all but the last; `num_local` of them are here.

    What is not here takes `compute_seconds`, as measured; None before anything was. `key` says with whom it may be
    shared.
    """

    model: str
    tokens: Sequence[int]
    key: PrefixKey
    request: ChatRequest
    num_local: int = 0
    compute_seconds: float | None = None

    @property
    def num_missing(self) -> int:
        """Tokens that are not here."""
        return len(self.tokens) - self.num_local


@dataclass(frozen=True, slots=True)
class KvMatch:
    """KV of a prompt's first `num_tokens` tokens is to be had in `load_seconds`, as far as was measured.

    `token_seconds` is what computing a token takes where the KV is; `source` is the connector's own.
    """

    num_tokens: int
    load_seconds: float
    token_seconds: float | None = None
    source: object = None


@dataclass(frozen=True, slots=True)
class KvPages:
    """The pages that are to be filled: `wanted` of the `num_pages` that KV of `num_tokens` tokens has, by number."""

    num_tokens: int
    num_pages: int
    wanted: Sequence[int]


class KvLayers(NamedTuple):
    """The bytes of some layers of the wanted pages: one page's layers after the other's.

    A layer that is too long for one message comes in several, of some of the wanted pages each: from `first_page` on,
    by its place among them.
    """

    first_layer: int
    num_layers: int
    data: Buffer
    first_page: int = 0


class HeldKv(Protocol):
    """KV that stays in memory from `open` to `close`. Each may wait for a step of the engine: call them in a thread."""

    def open(self) -> bool:
        """Begin to keep it. Raises `KvLostError`."""
        ...

    def close(self) -> None:
        """Keep it no longer. Safe to call twice, and before `open`."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens it is of, in whole blocks."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages it has: of layers that see a window, those in sight of the next token."""
        ...

    def read(self, wanted: Sequence[int], first_layer: int, num_layers: int) -> bytes:
        """Return layers of some pages, by number. Raises `KvLostError` when the engine needed the memory."""
        ...


class KvCache(Protocol):
    """A model's KV, for a connector to offer elsewhere. Any thread may call."""

    @property
    def layout(self) -> KvLayout:
        """What KV of the model is like."""
        ...

    def num_cached(self, tokens: Sequence[int], key: PrefixKey) -> int:
        """Return how many of a prompt's tokens are cached now, in whole blocks. Call it in a thread."""
        ...

    def hold(self, tokens: Sequence[int], key: PrefixKey) -> HeldKv:
        """Return what keeps the cached blocks of a prompt in memory, once it is opened; they may be none."""
        ...

    @property
    def token_seconds(self) -> float | None:
        """Seconds that computing a prompt's token takes, as measured."""
        ...


class KvConnector(Protocol):
    """Moves KV between engines. It is called in an event loop, which it must not block; `forget` in any thread."""

    @property
    def patience(self) -> float:
        """How long `matched_tokens` may take, as a share of the seconds that the prompt takes to compute."""
        ...

    def register(self, model: str, cache: KvCache) -> None:
        """Note a model whose KV can move."""
        ...

    def forget(self, model: str) -> None:
        """Forget a model that is unloaded."""
        ...

    async def matched_tokens(self, prompt: KvPrompt) -> KvMatch | None:
        """Return what is to be had of a prompt beyond `num_local` tokens; None when nothing is."""
        ...

    def load(self, prompt: KvPrompt, match: KvMatch, pages: KvPages) -> AsyncGenerator[KvLayers, None]:
        """Yield all layers of the wanted pages, from the first one on, and of each layer the first page first."""
        ...

    def save(self, prompt: KvPrompt) -> None:
        """Note that a prompt is computed and cached here."""
        ...

    async def close(self) -> None:
        """End what is under way."""
        ...


class KvConnectorFactory(Protocol):
    """Makes a plugin's connector. `name` is what `engine.kv_connector` calls it."""

    @property
    def name(self) -> str:
        """A word such as `redis`."""
        ...

    def open(self) -> KvConnector:
        """Return the connector of one engine. Cheap: it may connect on first use."""
        ...


@runtime_checkable
class MovableKv(Protocol):
    """A runner whose pages can be read and written from outside. Any thread may call."""

    @property
    def pool(self) -> BlockPool:
        """Which page holds which tokens' KV."""
        ...

    @property
    def kv_shape(self) -> KvShape:
        """How KV is kept."""
        ...

    def release(self, sequence_id: int) -> None:
        """End a sequence; what it computed may be found again as a prefix."""
        ...

    def when_starved(self, free: Callable[[], bool]) -> None:
        """Have `free` called where a request lacks pages: it frees those of what moves, and returns whether it did."""
        ...

    def restore(self, sequence_id: int, tokens: list[int], key: PrefixKey) -> tuple[int, list[int]] | None:
        """Start a sequence whose KV is elsewhere, as `BlockPool.restore` does; None without memory."""
        ...

    def read_layers(self, pages: Sequence[int], first_layer: int, num_layers: int) -> bytes:
        """Return layers of pages, one page's after the other's."""
        ...

    def write_layers(self, pages: Sequence[int], first_layer: int, num_layers: int, data: Buffer) -> None:
        """Put layers into pages. Raises `ValueError`, and changes nothing, where the bytes do not fit."""
        ...


class KvLostError(Exception):
    """The memory of KV that was to be moved was needed for something else, or its model is unloaded."""


class KvRefusedError(Exception):
    """Another engine's KV is not like this one's; the text names the first field that differs."""


_MARGIN = 0.8
"""Loading is to take no more than this share of computing: neither is known to a tenth."""


def is_worth_loading(match: KvMatch, num_local: int, token_seconds: float) -> bool:
    """Return whether KV comes sooner than it is computed, where computing a token takes so long."""
    return match.load_seconds < _MARGIN * (match.num_tokens - num_local) * token_seconds
