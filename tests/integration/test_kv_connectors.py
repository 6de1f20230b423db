"""KV that leaves one engine's memory for another's, by whatever connector, and gives way where memory is short."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.installed import find_first, write_distribution
from support.native import alone, assert_idle, chat, engine_of, options, run, running
from support.waiting import until

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.runners.batch import PLAIN_KEY
from pyagent.core.runners.kv_connector import KvLayout, KvLostError
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.kv_moves.fingerprint import hash_weights
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
        assert runner.kv_shape is not None
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
            for layer in range(here.layout.shape.layers_per_page):
                incoming.write(layer, 1, memoryview(held.read(incoming.pages.wanted, layer, 1)))
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
                incoming.write(0, 1, b"")
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
                    incoming.write(first, number, data)
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
    before = hash_weights(folder)
    (folder / "tokenizer.json").write_bytes(b"{}")
    assert hash_weights(a) == hash_weights(b) != hash_weights(c)
    assert hash_weights(folder) == before
    (folder / "config.json").write_bytes(b"{ }")
    assert hash_weights(folder) != before
    assert hash_weights(a, lambda: True) == ""


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


def test_connector_that_nobody_brings_is_refused(tiny_model_path: Path) -> None:
    """A name that no plugin brings is an error of the settings, with the names there are."""
    settings = load_settings(
        overrides={"engine.models": [str(tiny_model_path)], "engine.kv_connector": "reddis"}
    ).settings
    with pytest.raises(ConfigError, match=r"engine.kv_connector: there is no kv_connector 'reddis'; there are auto"):
        make_chain(settings, make_host(settings), ["native"])
