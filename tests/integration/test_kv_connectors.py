"""KV that leaves one engine's memory for another's, by whatever connector, and gives way where memory is short."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.hybrid_model import write_hybrid
from support.installed import find_first, write_distribution
from support.native import alone, assert_idle, chat, engine_of, options, run, running
from support.waiting import until

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.runners.batch import PLAIN_KEY
from pyagent.core.runners.kv_connector import KvCache, KvLayers, KvLayout, KvLostError, KvMatch, KvPages, KvPrompt
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.kv_moves import loader, moves
from pyagent.infrastructure.engine.kv_moves.fingerprint import find_weights, hash_weights
from pyagent.infrastructure.engine.kv_moves.transfers import KvTransfers
from pyagent.infrastructure.engine.models.loaded_model import LoadedModel

KV_FOLDER = (Path(__file__).parents[2] / "examples/pyagent-kvfolder/pyagent_kvfolder.py").read_text()
TEXT = "the user is at ease, and the system is on and on, " * 6


@asynccontextmanager
async def transferring(path: Path, **more: int) -> AsyncIterator[tuple[NativeBackend, LoadedModel, KvTransfers]]:
    """An engine that has computed a prompt, and what moves its KV."""
    async with running(path, options(**more)) as backend:  # type: ignore[arg-type]
        model = await backend.load()
        assert isinstance(model, LoadedModel)
        runner = model.movable
        assert runner is not None
        transfers = KvTransfers(runner, KvLayout(weights="", shape=runner.kv_shape), lambda: None)
        runner.when_starved(transfers.give_up)
        yield backend, model, transfers
        transfers.close()


def tokens_of(model: LoadedModel) -> list[int]:
    """The whole blocks of the prompt that every test asks."""
    tokens = model.input_processor.preprocessor.tokenize(chat(TEXT)).tokens
    return tokens[: len(tokens) // 16 * 16]


@pytest.mark.parametrize("kind", ["tiny_model_path", "tiny_gemma_path"])
def test_kv_read_from_one_engine_is_found_in_another(kind: str, request: pytest.FixtureRequest) -> None:
    """What is read layer by layer and written elsewhere is a cached prefix there; only missing pages are asked for."""
    path: Path = request.getfixturevalue(kind)

    async def work() -> None:
        ask = chat(TEXT, temperature=0, max_tokens=9, ignore_eos=True)
        (expected,) = await alone(path, [ask])
        async with transferring(path) as (one, model, here), transferring(path) as (other, _, there):
            assert (await collect(one.chat(ask))).text == expected
            tokens = tokens_of(model)
            held, incoming = here.hold(tokens, PLAIN_KEY), there.receive(tokens, PLAIN_KEY)
            assert held.open()
            assert incoming.open()
            assert (held.num_tokens, held.num_pages) == (len(tokens), incoming.pages.num_pages)
            assert list(incoming.pages.wanted) == list(range(held.num_pages))
            wanted = incoming.pages.wanted
            for layer in range(here.layout.shape.layers_per_page):
                for pages in (range(1), range(1, len(wanted))):
                    data = memoryview(held.read(wanted[pages.start : pages.stop], layer, 1))
                    incoming.write(KvLayers(layer, 1, data, pages.start), len(pages))
            assert there.num_cached(tokens, PLAIN_KEY) == 0
            incoming.finish()
            assert there.num_cached(tokens, PLAIN_KEY) == len(tokens)
            for moving in (held, incoming, held, incoming):
                moving.close()
            again = there.receive(tokens, PLAIN_KEY)
            assert again.open()
            assert not again.pages.wanted
            again.close()
            answer = await collect(other.chat(ask))
            assert answer.text == expected
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details.cached_tokens >= len(tokens) - 16
            await assert_idle(one)
            await assert_idle(other)

    run(work())


def test_kv_that_moves_gives_way_to_requests(tiny_model_path: Path) -> None:
    """A request that needs the memory of KV on its way gets it: reader and writer learn of it, and nothing is lost."""

    async def work() -> None:
        async with transferring(tiny_model_path, blocks=16) as (backend, model, transfers):
            ask = chat(TEXT, temperature=0, max_tokens=9, ignore_eos=True)
            text = (await collect(backend.chat(ask))).text
            tokens = tokens_of(model)
            held = transfers.hold(tokens, PLAIN_KEY)
            held.open()
            other = chat(f"another {TEXT}", temperature=0, max_tokens=9, ignore_eos=True)
            assert (await collect(backend.chat(other))).text
            with pytest.raises(KvLostError):
                held.read([0], 0, 1)
            incoming = transfers.receive([token + 1 for token in tokens], PLAIN_KEY)
            assert incoming.open()
            assert (await collect(backend.chat(ask))).text == text
            with pytest.raises(KvLostError):
                incoming.write(KvLayers(0, 1, b""), 1)
            with pytest.raises(KvLostError):
                incoming.finish()
            for moving in (held, incoming):
                moving.close()
            await assert_idle(backend)

    run(work())


def test_kv_that_is_given_up_leaves_nothing(tiny_model_path: Path) -> None:
    """Closed before it is opened, it never opens; wrong bytes change nothing; a model that ends ends what moves."""

    async def work() -> None:
        async with transferring(tiny_model_path) as (backend, model, transfers):
            tokens = list(range(3, 67))
            early = transfers.receive(tokens, PLAIN_KEY)
            early.close()
            with pytest.raises(KvLostError):
                early.open()
            incoming = transfers.receive(tokens, PLAIN_KEY)
            assert incoming.open()
            for first, number, data in ((0, 1, b""), (0, 1, bytes(7)), (0, 3, bytes(7)), (9, 1, b""), (0, 0, b"")):
                with pytest.raises(ValueError):  # noqa: PT011 - by the kernel's texts
                    incoming.write(KvLayers(first, number, data), len(incoming.pages.wanted))
            incoming.close()
            assert transfers.num_cached(tokens, PLAIN_KEY) == 0
            await assert_idle(backend)
            last = transfers.receive(tokens, PLAIN_KEY)
            assert last.open()
            transfers.close()
            with pytest.raises(KvLostError):
                last.finish()
            last.close()
            assert model.runner.pool.stats().active == 0

    run(work())


def test_weights_are_told_apart_by_content(tmp_path: Path) -> None:
    """A file has one hash under any name; another byte is another one; of a folder, weights and configuration count."""
    a, b, c = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    a.write_bytes(b"weights")
    b.write_bytes(b"weights")
    c.write_bytes(b"weightz")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "model.safetensors").write_bytes(b"w")

    def hashed(path: Path) -> str:
        return hash_weights(find_weights(path))

    before = hashed(folder)
    (folder / "tokenizer.json").write_bytes(b"{}")
    assert hashed(a) == hashed(b) != hashed(c)
    assert hashed(folder) == before
    (folder / "config.json").write_bytes(b"{ }")
    assert hashed(folder) != before
    assert hash_weights(find_weights(a), lambda: True) == ""


def test_weights_that_are_not_those_found_have_no_hash(tmp_path: Path) -> None:
    """A file that was replaced or written to since it was found is not hashed, nor one that is gone, nor no file."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    found = find_weights(file)
    assert hash_weights(found)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"weightz")
    other.replace(file)
    with pytest.raises(OSError, match="was changed or replaced after it was loaded"):
        hash_weights(found)
    found = find_weights(file)
    os.utime(file, ns=(0, 1))
    with pytest.raises(OSError, match="was changed or replaced"):
        hash_weights(found)
    file.unlink()
    for path in (file, tmp_path):
        with pytest.raises(OSError, match="no files of weights"):
            hash_weights(find_weights(path))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_model_is_registered_when_it_is_loaded(
    tmp_path: Path, tiny_model_path: Path, caplog: pytest.LogCaptureFixture, *, is_replaced: bool
) -> None:
    """Before any request its weights are known; of a file that was replaced after it was loaded, nothing moves."""
    path = tmp_path / "model.gguf"
    shutil.copy(tiny_model_path, path)

    async def work() -> None:
        connector = FailingConnector("nowhere")
        async with running(path, options()) as backend:
            assert isinstance(backend.engine, LocalEngine)
            model = await backend.load()
            assert isinstance(model, LoadedModel)
            if is_replaced:
                shutil.copy(tiny_model_path, tmp_path / "other.gguf")
                (tmp_path / "other.gguf").replace(path)
            assert backend.connect_kv(connector)
            if not is_replaced:
                await until(lambda: connector.layouts == [hash_weights(find_weights(path))])
                return
            await until(lambda: "KV of tiny does not move: what was loaded cannot be told" in caplog.text)
            assert (await collect(backend.chat(chat("hello", max_tokens=2)))).text
            assert not connector.layouts

    with caplog.at_level(logging.WARNING):
        run(work())


def test_model_that_is_loaded_again_is_registered_again(tiny_model_path: Path) -> None:
    """A connector is told of a model that an engine put to sleep and loaded again, whose file is hashed once."""

    async def work() -> None:
        connector = FailingConnector("nowhere")
        async with running(tiny_model_path, dataclasses.replace(options(), kv_connector=connector)) as backend:
            for number in range(1, 4):
                await collect(backend.chat(chat("hello", max_tokens=2)))
                await until(lambda number=number: len(connector.layouts) == number)  # type: ignore[misc]
                await backend.sleep(2)
                assert connector.num_forgotten == number
            assert len(set(connector.layouts)) == 1

    run(work())


def test_states_of_recurrent_layers_do_not_move(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model with such layers is computed where it is asked for; the log says why its KV does not move."""
    path = write_hybrid(tmp_path / "hybrid.gguf", "lfm2")

    async def work() -> None:
        connector = FailingConnector("nowhere")
        async with running(path, dataclasses.replace(options(), kv_connector=connector)) as backend:
            for _ in range(2):
                assert (await collect(backend.chat(chat("hello " * 20, max_tokens=2)))).text
            assert (await backend.load()).movable is None
        assert (connector.layouts, connector.loaded_tokens) == ([], 0)
        assert "KV of tiny does not move: its recurrent layers have a state" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(work())


def test_connector_of_a_plugin_keeps_kv_beyond_the_engine(
    tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that settings name brings KV that an engine of another time computed; answers stay the same."""
    site, kept = tmp_path / "site", tmp_path / "kept"
    site.mkdir()
    kept.mkdir()
    find_first(monkeypatch, site)
    (site / "kv_in_folder.py").write_text(KV_FOLDER)
    write_distribution(site, "kvfolder", "kvfolder.kv_connectors = kv_in_folder")
    monkeypatch.delitem(sys.modules, "kv_in_folder", raising=False)
    monkeypatch.setenv("KV_FOLDER", str(kept))
    ask = chat(TEXT, temperature=0, max_tokens=9, ignore_eos=True)

    async def answered(number: int) -> tuple[str, int]:
        async with engine_of(tiny_model_path, process=False, **{"engine.kv_connector": "folder"}) as backend:
            await collect(backend.chat(chat("hello", max_tokens=2)))
            await until(lambda: bool(backend.engine.kv.stats()))  # type: ignore[attr-defined]
            (model,) = backend.engine.models.loaded().values()  # type: ignore[attr-defined]
            model.engine.scheduler.costs.prompt_token_seconds = 1.0
            text = (await collect(backend.chat(ask))).text
            await until(lambda: len(list(kept.glob("*.kv"))) >= number)
            (moved,) = backend.engine.kv.stats().values()  # type: ignore[attr-defined]
            return text, moved.num_loads

    async def work() -> None:
        (expected,) = await alone(tiny_model_path, [ask])
        assert await answered(1) == (expected, 0)
        assert await answered(1) == (expected, 1)

    asyncio.run(work())


class OddError(Exception):
    """Of a plugin's own, derived from nothing that is known."""


class FailingConnector:
    """Has every prompt, and fails at one place."""

    name = "failing"
    patience = 10.0

    def __init__(self, place: str, token_seconds: float | None = None) -> None:
        self.place = place
        self.token_seconds = token_seconds
        self.is_loading = asyncio.Event()
        self.layouts: list[str] = []
        self.num_forgotten = 0
        self.loaded_tokens = 0

    def open(self) -> FailingConnector:
        return self

    def _pass(self, place: str) -> None:
        if place == self.place:
            raise OddError

    def register(self, model: str, cache: KvCache) -> None:
        self._pass("register")
        self.layouts.append(cache.layout.weights)

    def forget(self, model: str) -> None:
        self.num_forgotten += 1
        self._pass("forget")

    async def matched_tokens(self, prompt: KvPrompt) -> KvMatch | None:
        self._pass("matched_tokens")
        if self.place == "cancelled":
            raise asyncio.CancelledError
        num_odd = 3 if self.place == "odd match" else 0
        return KvMatch(len(prompt.tokens) - num_odd, 0.0, self.token_seconds)

    async def load(self, prompt: KvPrompt, match: KvMatch, pages: KvPages) -> AsyncGenerator[KvLayers, None]:
        self.is_loading.set()
        assert match.num_tokens == pages.num_tokens
        self.loaded_tokens = pages.num_tokens
        if self.place == "hangs":
            await asyncio.Event().wait()
        self._pass("load")
        yield KvLayers(1, 1, b"")

    def save(self, prompt: KvPrompt) -> None:
        self._pass("save")

    async def close(self) -> None:
        if self.place == "never closes":
            await asyncio.Event().wait()
        self._pass("close")


@asynccontextmanager
async def moving_by(path: Path, connector: FailingConnector) -> AsyncIterator[tuple[NativeBackend, LoadedModel]]:
    """An engine whose connector was told of its model, and that has measured nothing."""
    async with running(path, dataclasses.replace(options(), kv_connector=connector)) as backend:
        assert isinstance(backend.engine, LocalEngine)
        await collect(backend.chat(chat("hello", max_tokens=2)))
        kv = backend.engine.kv
        await until(lambda: bool(kv.stats() or kv._staying))
        model = await backend.load()
        assert isinstance(model, LoadedModel)
        model.engine.scheduler.costs.prompt_token_seconds = None if connector.token_seconds else 1.0
        yield backend, model


def assert_ended(model: LoadedModel) -> None:
    """The runner, and the thread of the engine, are over."""
    assert model.is_closed
    assert model.runner._swap is None  # type: ignore[attr-defined]
    thread = model.engine._thread
    assert thread is None or not thread.is_alive()


@pytest.mark.parametrize(
    "place", ["register", "matched_tokens", "cancelled", "load", "save", "forget", "close", "never closes"]
)
def test_connector_that_fails_costs_time_alone(
    tiny_model_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a connector raises, and wherever: answers are right, no page is held, and the model is unloaded."""
    monkeypatch.setattr(moves, "_CLOSE_SECONDS", 0.05)

    async def work() -> None:
        ask = chat(TEXT, temperature=0, max_tokens=9, ignore_eos=True)
        (expected,) = await alone(tiny_model_path, [ask])
        async with moving_by(tiny_model_path, FailingConnector(place)) as (backend, model):
            assert (await collect(backend.chat(ask))).text == expected
            await assert_idle(backend)
            assert (place == "register") == (not backend.engine.kv.stats())  # type: ignore[attr-defined]
            if place == "forget":  # of a model that is unloaded while its connector is there
                await backend.sleep(2)
                assert_ended(model)
                assert (await collect(backend.chat(ask))).text == expected
        assert_ended(model)

    run(work())


def test_match_within_a_block_is_taken_to_its_beginning(tiny_model_path: Path) -> None:
    """KV comes in whole blocks: of a match that ends within one, those before it are loaded."""

    async def work() -> None:
        connector = FailingConnector("odd match")
        async with moving_by(tiny_model_path, connector) as (backend, model):
            await collect(backend.chat(chat(TEXT, max_tokens=2)))
            assert connector.loaded_tokens == (len(tokens_of(model)) - 3) // 16 * 16 > 0

    run(work())


def test_load_that_hangs_ends_though_its_source_says_that_computing_takes_long(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing was measured here, the word of a source holds no request for as long as it likes."""
    monkeypatch.setattr(loader, "_UNMEASURED_LOAD_SECONDS", 0.05)

    async def work() -> None:
        ask = chat(TEXT, temperature=0, max_tokens=9, ignore_eos=True)
        (expected,) = await alone(tiny_model_path, [ask])
        connector = FailingConnector("hangs", token_seconds=1e6)
        async with moving_by(tiny_model_path, connector) as (backend, _), asyncio.timeout(60):
            assert (await collect(backend.chat(ask))).text == expected
            assert connector.is_loading.is_set()
            await assert_idle(backend)

    run(work())


def test_request_that_is_cancelled_twice_leaves_no_page(tiny_model_path: Path) -> None:
    """A client that goes while its server ends, and all threads are busy: what was reserved for KV is free again."""

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        connector, go_on = FailingConnector("hangs"), threading.Event()
        async with moving_by(tiny_model_path, connector) as (backend, model):
            asking = asyncio.create_task(collect(backend.chat(chat(TEXT))))
            await connector.is_loading.wait()
            assert model.runner.pool.stats().active
            busy = asyncio.get_running_loop().run_in_executor(None, go_on.wait)
            for _ in range(2):
                asking.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)
            assert asking.done()
            go_on.set()
            await busy
            await until(lambda: not model.runner.pool.stats().active)
            await assert_idle(backend)

    run(work())


def test_connector_that_nobody_brings_is_refused(tiny_model_path: Path) -> None:
    """A name that no plugin brings is an error of the settings, with the names there are."""
    settings = load_settings(
        overrides={"engine.models": [str(tiny_model_path)], "engine.kv_connector": "reddis"}
    ).settings
    with pytest.raises(ConfigError, match=r"engine.kv_connector: there is no kv_connector 'reddis'; there are auto"):
        make_chain(settings, make_host(settings), ["native"])
