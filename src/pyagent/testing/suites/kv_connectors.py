"""What every KV connector must do, over a cache of the suite's whose bytes tell what they are of.

    class TestFolder(KvConnectorConformance):
        def make(self):
            return KvFolder()

Nothing is assumed of where the KV goes. Two connectors are open at the same time, as of two engines.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

import msgspec

from pyagent.core.messages import ChatRequest
from pyagent.core.runners.batch import BLOCK_TOKENS, PrefixKey
from pyagent.core.runners.kv_connector import (
    KvConnector,
    KvConnectorFactory,
    KvLayout,
    KvMatch,
    KvPages,
    KvPrompt,
    KvShape,
)
from pyagent.testing.suites.checks import check_host_takes, run

_MODEL = "model"
_NUM_LOOKS, _LOOK_SECONDS = 250, 0.02
_SHAPE = KvShape(
    kv_dtype="bf16",
    num_kv_heads=1,
    head_dim=16,
    rope="none",
    block_tokens=BLOCK_TOKENS,
    groups=(("full", 0, 1),),
    layers_per_page=3,
    layer_bytes=64,
)
_weights = itertools.count()
"""Each test has a model of its own: what others have saved is not its."""


class KvConnectorConformance:
    """Derive from it, and define `make`."""

    _factory: KvConnectorFactory | None = None

    def make(self) -> KvConnectorFactory:
        """Return the factory."""
        raise NotImplementedError

    def test_host_takes_the_connector(self) -> None:
        """It has a name and `open`; what that gives has a `patience`, the share of a prompt's time it may look."""
        check_host_takes("kv_connectors", [self.make()])

        async def work() -> object:
            async with self._opened(_Cache()) as connector:
                return cast("object", connector.patience)

        patience = run(work())
        assert isinstance(patience, int | float), f"`patience` is {patience!r}"
        assert patience >= 0, f"`patience` is {patience!r}"

    def test_saved_kv_is_found_and_loaded(self) -> None:
        """What one engine saved another finds, and loads byte by byte, layer by layer, page by page."""
        cache, prompt = _Cache(), _prompt(range(96))

        async def work() -> None:
            async with self._opened(cache) as writer, self._opened(cache) as reader:
                match = await _saved(writer, reader, prompt)
                for wanted in (range(match.num_tokens // BLOCK_TOKENS), range(1, match.num_tokens // BLOCK_TOKENS, 2)):
                    await _check_loaded(reader, cache, prompt, match, list(wanted))

        run(work())

    def test_match_is_of_whole_blocks_beyond_what_is_here(self) -> None:
        """A match is of whole blocks of the prompt, and of more tokens than there are here; else there is none."""
        cache, prompt = _Cache(), _prompt(range(96))

        async def work() -> None:
            async with self._opened(cache) as connector:
                match = await _saved(connector, connector, prompt)
                assert match.num_tokens % BLOCK_TOKENS == 0, f"a match of {match.num_tokens} tokens, not of blocks"
                assert 0 < match.num_tokens <= len(prompt.tokens), f"a match of {match.num_tokens} tokens"
                assert match.load_seconds >= 0, f"loading takes {match.load_seconds} seconds"
                local = _prompt(range(96), num_local=96)
                assert await connector.matched_tokens(local) is None, "it brings what is here already"

        run(work())

    def test_longer_prompt_finds_what_it_begins_with(self) -> None:
        """A prompt that begins as a saved one is matched as far as both are the same, with the right bytes."""
        cache, prompt = _Cache(), _prompt([*range(96), *range(500, 532)])

        async def work() -> None:
            async with self._opened(cache) as connector:
                await _saved(connector, connector, _prompt(range(96)))
                if (match := await connector.matched_tokens(prompt)) is None:
                    return  # it may look for whole prompts alone
                assert match.num_tokens <= 96, f"it matches {match.num_tokens} tokens of 96 that are the same"
                await _check_loaded(connector, cache, prompt, match, list(range(match.num_tokens // BLOCK_TOKENS)))

        run(work())

    def test_other_prompts_find_nothing(self) -> None:
        """Neither other tokens, nor another tenant's or adapter's prompt, nor another model's weights, are matched."""
        cache, prompt = _Cache(), _prompt(range(96))

        async def work() -> None:
            async with self._opened(cache) as connector, self._opened(_Cache()) as other_model:
                await _saved(connector, connector, prompt)
                others = {
                    "other tokens": _prompt(range(1, 97)),
                    "another tenant": _prompt(range(96), PrefixKey(tenant="another")),
                    "another adapter": _prompt(range(96), PrefixKey(adapter_id=7)),
                    "another picture": _prompt(range(96), PrefixKey(media_hash=b"picture")),
                }
                for name, other in others.items():
                    assert await connector.matched_tokens(other) is None, f"{name} is given this prompt's KV"
                assert await other_model.matched_tokens(prompt) is None, "other weights are given this model's KV"

        run(work())

    def test_kv_that_is_gone_is_not_offered(self) -> None:
        """A prompt whose blocks were needed for something else when they were to be saved is not found, nor half."""
        cache, prompt = _Cache(num_cached=32), _prompt(range(96))

        async def work() -> None:
            async with self._opened(cache) as connector:
                connector.save(prompt)
                await asyncio.sleep(0.2)
                if (match := await connector.matched_tokens(prompt)) is not None:
                    assert match.num_tokens <= 32, "it offers KV that was not there to be saved"
                    await _check_loaded(connector, cache, prompt, match, list(range(match.num_tokens // BLOCK_TOKENS)))

        run(work())

    def test_load_may_be_left(self) -> None:
        """A prompt that is no longer wanted leaves its loading, and the next is loaded."""
        cache, prompt = _Cache(), _prompt(range(96))

        async def work() -> None:
            async with self._opened(cache) as connector:
                match = await _saved(connector, connector, prompt)
                blocks = match.num_tokens // BLOCK_TOKENS
                stream = connector.load(prompt, match, KvPages(match.num_tokens, blocks, range(blocks)))
                await anext(stream)
                await stream.aclose()
                await _check_loaded(connector, cache, prompt, match, list(range(blocks)))

        run(work())

    def test_close_is_safe_twice_and_while_saving(self) -> None:
        """`close` ends what is under way, and may come twice."""

        async def work() -> None:
            async with self._opened(_Cache()) as connector:
                connector.save(_prompt(range(96)))
                await connector.close()

        run(work())

    @asynccontextmanager
    async def _opened(self, cache: _Cache) -> AsyncGenerator[KvConnector]:
        if self._factory is None:
            self._factory = self.make()
        connector = self._factory.open()
        connector.register(_MODEL, cache)
        try:
            yield connector
        finally:
            connector.forget(_MODEL)
            await connector.close()


class _Cache:
    """A cache that has the first tokens of every prompt; a layer's bytes are a hash of what they are of."""

    token_seconds = 0.01

    def __init__(self, num_cached: int = 1 << 20) -> None:
        self._num_cached = num_cached
        self.layout = KvLayout(weights=f"suite {next(_weights)}", shape=_SHAPE)

    def num_cached(self, tokens: Sequence[int], key: PrefixKey) -> int:
        """Do as `KvCache.num_cached` does."""
        return min(len(tokens), self._num_cached) // BLOCK_TOKENS * BLOCK_TOKENS

    def hold(self, tokens: Sequence[int], key: PrefixKey) -> _Held:
        """Do as `KvCache.hold` does."""
        return _Held(self, tokens[: self.num_cached(tokens, key)])

    def layer(self, tokens: Sequence[int], page: int, layer: int) -> bytes:
        """Return a page's layer of a prompt."""
        said = msgspec.msgpack.encode((self.layout, list(tokens[: (page + 1) * BLOCK_TOKENS]), layer))
        return sha256(said).digest() * (_SHAPE.layer_bytes // 32)


@dataclass
class _Held:
    cache: _Cache
    tokens: Sequence[int]

    def open(self) -> bool:
        """Do as `HeldKv.open` does."""
        return True

    def close(self) -> None:
        """Do as `HeldKv.close` does."""

    @property
    def num_tokens(self) -> int:
        """Do as `HeldKv.num_tokens` does."""
        return len(self.tokens)

    @property
    def num_pages(self) -> int:
        """Do as `HeldKv.num_pages` does."""
        return len(self.tokens) // BLOCK_TOKENS

    def read(self, wanted: Sequence[int], first_layer: int, num_layers: int) -> bytes:
        """Do as `HeldKv.read` does."""
        layers = range(first_layer, first_layer + num_layers)
        return b"".join(self.cache.layer(self.tokens, page, layer) for page in wanted for layer in layers)


def _prompt(tokens: Sequence[int], key: PrefixKey | None = None, num_local: int = 0) -> KvPrompt:
    return KvPrompt(_MODEL, list(tokens), key or PrefixKey(), ChatRequest(model=_MODEL), num_local)


async def _saved(writer: KvConnector, reader: KvConnector, prompt: KvPrompt) -> KvMatch:
    """Return where one finds what the other saves."""
    writer.save(prompt)
    for _ in range(_NUM_LOOKS):
        if (match := await reader.matched_tokens(prompt)) is not None:
            return match
        await asyncio.sleep(_LOOK_SECONDS)
    raise AssertionError(f"what was saved is not found within {_NUM_LOOKS * _LOOK_SECONDS:g} seconds")


async def _check_loaded(
    connector: KvConnector, cache: _Cache, prompt: KvPrompt, match: KvMatch, wanted: list[int]
) -> None:
    """Fail where what is loaded is not what the cache has, each layer of each wanted page once, in order."""
    found: dict[tuple[int, int], bytes] = {}
    pages = KvPages(match.num_tokens, match.num_tokens // BLOCK_TOKENS, wanted)
    next_layer, size = 0, _SHAPE.layer_bytes
    async for piece in connector.load(prompt, match, pages):
        data = bytes(memoryview(piece.data).cast("B"))
        num_pages = len(data) // (size * piece.num_layers)
        assert piece.first_layer <= next_layer, f"layer {piece.first_layer} comes before layer {next_layer}"
        for place, (page, layer) in enumerate(itertools.product(range(num_pages), range(piece.num_layers))):
            at = (wanted[piece.first_page + page], piece.first_layer + layer)
            assert at not in found, f"layer {at[1]} of page {at[0]} comes twice"
            found[at] = data[place * size : (place + 1) * size]
        if piece.first_page + num_pages == len(wanted):
            next_layer = piece.first_layer + piece.num_layers
    expected = {
        (page, layer): cache.layer(prompt.tokens, page, layer)
        for page in wanted
        for layer in range(_SHAPE.layers_per_page)
    }
    missing = expected.keys() - found.keys()
    assert not missing, f"layer {min(missing)[1]} of page {min(missing)[0]} does not come"
    wrong = [at for at, data in expected.items() if found[at] != data]
    assert not wrong, f"layer {wrong[0][1]} of page {wrong[0][0]} has other bytes than were saved"
