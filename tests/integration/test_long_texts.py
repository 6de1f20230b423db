"""Texts longer than a batch on the embedded engine: the same vectors, memory that is given back, refusals."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import httpx
import pytest
from support.encoders import native, on
from support.folder_tokenizer import write_model_folder

from pyagent import _rust
from pyagent.core.errors import CapacityError, ContextOverflowError, RequestError
from pyagent.core.messages import EmbedRequest, TokenEmbedRequest
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.encoders.encoder_queue import EncoderQueue
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

CONTEXT = 3_000
LONG = "the cat sat on a mat, " * 90
TEXTS = ["a cat", LONG, "a dog", LONG[::-1]]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random decoder that embeds by the mean of its tokens."""
    folder = tmp_path_factory.mktemp("decoder")
    write_model_folder(folder, "qwen3", max_position_embeddings=CONTEXT)
    steps = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [{"idx": at, "path": path, "type": f"m.{kind}"} for at, (kind, path) in enumerate(steps)]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    modes = json.dumps({"pooling_mode_mean_tokens": True})
    (folder / "1_Pooling" / "config.json").write_text(modes, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def expected(decoder: Path) -> list[list[float]]:
    """The texts' vectors, each read whole."""
    model = _rust.EncoderModel.load(decoder, threads=2, most_tokens=CONTEXT)
    tokens = TextTokens(decoder, CONTEXT, model.info()["vocab_size"]).encode(TEXTS)
    assert [len(ids) > 1024 for ids in tokens] == [False, True, False, True]
    return list(rows(model.compute(tokens), model.info()["num_outputs"]))


def rows(packed: bytes, width: int) -> Iterator[list[float]]:
    numbers = array("f", packed).tolist()
    return (numbers[start : start + width] for start in range(0, len(numbers), width))


def test_long_texts_have_the_vectors_of_texts_read_whole(decoder: Path, expected: list[list[float]]) -> None:
    """Bit for bit, beside short ones and in their order; what they take is in the ledger and given back."""

    async def whole(backend: NativeBackend) -> None:
        asked = EmbedRequest(model="", input=TEXTS)
        before = await backend.embed(EmbedRequest(model="", input=["a"]))
        held = (await backend.engine_state()).memory
        found = await backend.embed(asked)
        assert found.vectors == expected
        assert (await backend.engine_state()).memory == held
        assert before.vectors != found.vectors[:1]
        tokens = (await backend.token_embed(TokenEmbedRequest(model="", input=TEXTS))).vectors
        assert sum(map(len, tokens)) == found.usage.prompt_tokens

    on(lambda: native(decoder), whole)


def test_long_texts_over_http(decoder: Path, expected: list[list[float]]) -> None:
    """OpenAI's and Ollama's APIs; a text that is longer than the model's context is refused, or cut to it."""
    with serve(create_app(native(decoder))) as url:
        found = httpx.post(f"{url}/v1/embeddings", json={"input": TEXTS}, timeout=60).json()["data"]
        assert [one["embedding"] for one in found] == expected
        found = httpx.post(f"{url}/api/embed", json={"model": str(decoder), "input": LONG}, timeout=60).json()
        assert found["embeddings"] == [expected[1]]
        refused = httpx.post(f"{url}/v1/embeddings", json={"input": LONG * 4}, timeout=60)
        assert (refused.status_code, f"the model takes {CONTEXT}" in refused.text) == (400, True)
        cut = httpx.post(f"{url}/v1/embeddings", json={"input": LONG * 4, "truncate": True}, timeout=60).json()
        assert cut["usage"]["prompt_tokens"] == CONTEXT


def test_a_long_text_without_room_is_refused_by_what_it_needs(decoder: Path) -> None:
    """One that never fits says what to do; one for which there is no room now may be sent again; short ones go on."""
    about = _rust.describe_encoder(decoder, threads=_rust.available_cores())
    assert about is not None
    own = about["weight_bytes"] + about["workspace_bytes"] + 500 * about["vocab_size"]

    async def little(backend: NativeBackend) -> None:
        with pytest.raises(RequestError, match=r"for a text of \d,\d+ tokens, but the engine may use .*engine\.memory"):
            await backend.embed(EmbedRequest(model="", input=TEXTS))
        assert len((await backend.embed(EmbedRequest(model="", input=["a cat"]))).vectors) == 1
        with pytest.raises(ContextOverflowError):
            await backend.embed(EmbedRequest(model="", input=[LONG * 4]))

    async def held(backend: NativeBackend) -> None:
        await backend.embed(EmbedRequest(model="", input=["a"]))
        taken = backend.engine.models.ledger.reserve("someone else", about["long_text_bytes"])
        with pytest.raises(CapacityError, match="someone else"):
            await backend.embed(EmbedRequest(model="", input=TEXTS))
        taken.release()
        assert len((await backend.embed(EmbedRequest(model="", input=TEXTS))).vectors) == 4

    on(lambda: native(decoder, memory=own + 100_000), little)
    on(lambda: native(decoder, memory=own + about["long_text_bytes"] + 100_000), held)


def test_an_encoder_is_kept_while_its_own_thread_asks_for_memory(decoder: Path) -> None:
    """Also when its request has gone meanwhile; then it can be unloaded, and the ledger has all of its bytes again."""
    about = _rust.describe_encoder(decoder, threads=_rust.available_cores())
    assert about is not None
    own = about["weight_bytes"] + about["workspace_bytes"] + 500 * about["vocab_size"]

    async def whole(backend: NativeBackend) -> None:
        pool, ledger = backend.engine.models.encoders, backend.engine.models.ledger
        loop, has_left, queues = asyncio.get_running_loop(), Event(), list[EncoderQueue]()

        def leave(_: int) -> None:
            queues.append(pool.loaded()[str(decoder)].queue)
            loop.call_soon_threadsafe(reading.cancel)
            has_left.wait(10)

        other = ledger.reserve("someone else", about["long_text_bytes"], leave)
        reading = asyncio.ensure_future(backend.embed(EmbedRequest(model="", input=[LONG])))
        with pytest.raises(asyncio.CancelledError):
            await reading
        has_left.set()
        while queues[0]._long_jobs:  # noqa: ASYNC110 - the encoder is asked next, by a thread
            await asyncio.sleep(0.001)
        other.release()
        found = await backend.embed(EmbedRequest(model="", input=TEXTS))
        assert len(found.vectors) == 4
        held = sum(size for account, size in ledger.accounts().items() if str(decoder) in account)
        assert pool.num_bytes == held > 0
        model = pool.loaded()[str(decoder)].model
        begun = pool._begin(str(decoder), model, [1] * 2_000, gives_tokens=False)
        assert pool.num_bytes == held + model.long_text_bytes(2_000)
        begun.close()
        with pytest.raises(ValueError, match="not in the vocabulary"):
            pool._begin(str(decoder), model, [1 << 24] * 2_000, gives_tokens=False)
        assert pool.num_bytes == held
        pool.unload(str(decoder))
        assert not any(str(decoder) in account for account in ledger.accounts())

    on(lambda: native(decoder, memory=own + about["long_text_bytes"] + 100_000), whole)
