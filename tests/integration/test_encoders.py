"""Embeddings by the embedded engine: in this process, in one of its own, over HTTP, in chains; and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import ollama
import openai
import pytest
from support.tiny_encoder import (
    LONGEST,
    PIECES,
    POOLINGS,
    SHAPE,
    expected_vector,
    tensors_of,
    write_encoder,
    write_gguf_encoder,
    write_json,
)
from support.tiny_model import write_tiny_model

from pyagent import _rust
from pyagent.assembly import make_embedder
from pyagent.chains import Chain, Engine
from pyagent.cli.root import run as run_command
from pyagent.core.backends import collect
from pyagent.core.errors import CapacityError, ContextOverflowError, ModelError, PyAgentError, RequestError
from pyagent.core.messages import ChatRequest, EmbedRequest, EmbedResult, Message
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.core.settings.fleet import Search
from pyagent.core.settings.program import Paths
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.models.describe import task_of
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

WIDTH = SHAPE["hidden_size"]
TEXTS = ["the cat", "a", "the " * 30, "x y z " * 10, "cat the, cat"]
LONG = "the " * 100


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random encoder."""
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that answers."""
    return write_tiny_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


def native(*paths: Path, memory: int = 1 << 30) -> NativeBackend:
    """A backend of models by their paths."""
    pool = ModelPool(Path, EngineOptions(), Ledger(memory))
    names = [str(path) for path in paths]
    return NativeBackend(names, LocalEngine(pool), look=lambda _: "", task_of=lambda name: task_of(Path(name)))


@asynccontextmanager
async def running(*paths: Path, memory: int = 1 << 30) -> AsyncGenerator[NativeBackend]:
    """Such a backend, closed in the end."""
    backend = native(*paths, memory=memory)
    try:
        yield backend
    finally:
        await backend.close()


def on(backend: Callable[[], Any], work: Callable[[NativeBackend], Awaitable[Any]]) -> Any:
    """Do something with a backend of its own."""

    async def whole() -> Any:
        async with backend() as made:
            return await work(made)

    return asyncio.run(whole())


def embedded(path: Path, texts: list[str], **options: Any) -> EmbedResult:
    """Texts' vectors by an engine of its own."""
    return on(lambda: running(path), lambda made: made.embed(EmbedRequest(model="", input=texts, **options)))


# -- the numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", [*POOLINGS, "mean_tokens cls_token", " ".join(reversed(POOLINGS))])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_vectors_equal_the_formula(pooling: str, kind: str, tmp_path: Path) -> None:
    """Each pooling of each family, and several one after another, is what plain double precision gives, to 1e-5."""
    config = SHAPE | ({} if kind == "bert" else {"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1})
    tensors = tensors_of(config)
    path = write_encoder(tmp_path, pooling=pooling, tensors=tensors, **config)
    model = _rust.EncoderModel.load(path, threads=2)
    for tokens in ([2, 3], [2, 9, 40, 3], [2, *range(5, 30), 3]):
        got = array("f", model.compute([tokens])).tolist()
        assert got == pytest.approx(expected_vector(tokens, config, tensors, pooling), abs=1e-5)


def test_vectors_are_the_same_alone_and_in_any_batch(encoder: Path) -> None:
    """Bit for bit: alone, in any company and order, on any number of threads and every instruction set."""
    model = _rust.EncoderModel.load(encoder, threads=1)
    texts = [[2, *((3 * i + n) % (len(PIECES) - 5) + 5 for i in range(n)), 3] for n in (1, 5, 14, 15, 16, 17, 33, 38)]
    alone = [model.compute([tokens]) for tokens in texts]
    assert len(set(alone)) == len(texts)
    for threads in (1, 2, 3):
        for isa in _rust.cpu_features()["isas"]:
            other = _rust.EncoderModel.load(encoder, threads=threads, isa=isa)
            many = [*texts, *reversed(texts)] * 3
            assert other.compute(many) == b"".join([*alone, *reversed(alone)] * 3), (threads, isa)


def test_vectors_have_length_one_and_tokens_are_counted(encoder: Path) -> None:
    """One vector a text, in order, of length 1; usage counts all tokens, special ones too."""
    found = embedded(encoder, TEXTS)
    assert [len(vector) for vector in found.vectors] == [WIDTH] * len(TEXTS)
    assert [sum(x * x for x in vector) for vector in found.vectors] == pytest.approx([1.0] * len(TEXTS), abs=1e-6)
    tokens = TextTokens(encoder, LONGEST, len(PIECES)).encode(TEXTS)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, tokens))
    assert found.vectors == [vector for text in TEXTS for vector in embedded(encoder, [text]).vectors]


def test_many_requests_at_once_get_their_own_vectors(encoder: Path) -> None:
    """Forty callers with different texts, some of whom leave: each gets what it would get alone."""

    async def work(backend: NativeBackend) -> None:
        requests = [[f"{'abcdefgh'[n % 8] * (n % 30 + 1)} the", "cat"] * (1 + n % 5) for n in range(40)]
        expected = [(await backend.embed(EmbedRequest(model="", input=texts))).vectors for texts in requests]
        tasks = [asyncio.create_task(backend.embed(EmbedRequest(model="", input=texts))) for texts in requests]
        await asyncio.sleep(0)
        for task in tasks[::7]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for number, (one, vectors) in enumerate(zip(found, expected, strict=True)):
            if number % 7:
                assert isinstance(one, EmbedResult)
                assert one.vectors == vectors

    on(lambda: running(encoder), work)


def test_tokenizer_is_made_of_a_list_of_pieces_or_read(encoder: Path, tmp_path: Path) -> None:
    """Without tokenizer.json the pieces of vocab.txt give the same tokens; its padding and truncation are left out."""
    from_pieces = TextTokens(encoder, LONGEST, len(PIECES))
    inner: Any = from_pieces._inner  # pyright: ignore[reportPrivateUsage]
    inner.enable_padding(length=12)
    inner.enable_truncation(4)
    inner.save(str(tmp_path / "tokenizer.json"))
    inner.no_padding()
    inner.no_truncation()
    read = TextTokens(tmp_path, LONGEST, len(PIECES))
    assert read.encode(TEXTS) == from_pieces.encode(TEXTS)
    begin, end = PIECES.index("[CLS]"), PIECES.index("[SEP]")
    assert read.encode(["The CAT ab"]) == [[begin, PIECES.index("the"), PIECES.index("cat"), 5, 32, end]]
    [cut] = read.encode([LONG], truncates=True)
    assert (len(cut), cut[0], cut[-1]) == (LONGEST, begin, end)


def test_gguf_file_gives_the_vectors_of_the_folder(encoder: Path, tmp_path: Path) -> None:
    """The same weights under llama.cpp's names: the same tokens, and the same bits."""
    path = write_gguf_encoder(tmp_path / "m.gguf")
    assert task_of(path) == "embed"
    assert embedded(path, TEXTS).vectors == embedded(encoder, TEXTS).vectors
    for changes, expected in [
        ({"tokenizer__ggml__model": "rwkv"}, "tokenizer 'rwkv' is not supported"),
        ({"bert__pooling_type": 4}, "pooling_type' is 4"),
        ({"bert__embedding_length": 48}, "token_embd.weight' is 59 x 24; expected 59 x 48"),
    ]:
        with pytest.raises(ModelError, match=expected):
            embedded(write_gguf_encoder(tmp_path / "bad.gguf", **changes), ["the"])


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["the", ""], "input 1 is empty"),
        (["the", LONG], "input 1 has 102 tokens, the model takes 40"),
        (["\ud800"], "input 0 is no Unicode"),
        ([*["the"] * 70, LONG], "input 70 has 102 tokens"),
    ],
)
def test_texts_that_cannot_be_embedded_are_refused_by_number(texts: list[str], expected: str, encoder: Path) -> None:
    """Nothing is embedded, and the error names the text; the engine goes on."""

    async def work(backend: NativeBackend) -> None:
        with pytest.raises(RequestError, match=expected):
            await backend.embed(EmbedRequest(model="", input=texts))
        assert (await backend.embed(EmbedRequest(model="", input=["the"]))).vectors

    on(lambda: running(encoder), work)


def test_long_texts_are_cut_where_asked(encoder: Path) -> None:
    """With `truncate` a long text has the vector of its beginning."""
    whole, begun = embedded(encoder, [LONG, "the " * (LONGEST - 2)], truncate=True).vectors
    assert whole == begun


def _without(name: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        tensors = tensors_of(SHAPE)
        del tensors[name]
        write_encoder(path, tensors=tensors)

    return change


def _reshaped(path: Path) -> None:
    tensors = tensors_of(SHAPE)
    shape, values = tensors["encoder.layer.1.output.dense.weight"]
    tensors["encoder.layer.1.output.dense.weight"] = (shape[::-1], values)
    write_encoder(path, tensors=tensors)


def _config(**changes: Any) -> Callable[[Path], object]:
    tensors = tensors_of(SHAPE)
    return lambda path: write_encoder(path, tensors=tensors, **changes)


def _json(name: str, value: object) -> Callable[[Path], object]:
    return lambda path: write_json(path / name, value)


def _bytes(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(data)


def _gone(path: Path) -> None:
    (path / "vocab.txt").unlink()


def _step(kind: str, path: str = "1_Pooling") -> Callable[[Path], object]:
    steps: list[dict[str, str]] = [{"type": "m.Transformer", "path": ""}, {"type": f"m.{kind}", "path": path}]
    return lambda folder: write_json(folder / "modules.json", steps)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_without("encoder.layer.1.attention.self.key.bias"), "'?encoder.layer.1.attention.self.key.bias"),
        (_without("embeddings.LayerNorm.weight"), "embeddings.LayerNorm.weight"),
        (_reshaped, "'encoder.layer.1.output.dense.weight' is 40 x 24; expected 24 x 40"),
        (_config(hidden_size=1 << 40), "hidden size is"),
        (_config(num_attention_heads=5), "5 attention heads cannot share"),
        (_config(vocab_size=1 << 30), "vocabulary is"),
        (_config(vocab_size=1_000), "word_embeddings"),
        (_config(num_hidden_layers=900), "encoder.layer.2"),
        (_config(num_hidden_layers=1), "tensors of layer 1; config.json counts 1 layers"),
        (_config(hidden_act="relu"), "activation 'relu'"),
        (_config(position_embedding_type="relative_key"), "relative_key"),
        (_config(rope_theta=1.0), "rope_theta"),
        (_config(architectures=["BertForQuestionAnswering"]), "ranks or classifies texts"),
        (_config(layer_norm_eps=-1), "norm epsilon"),
        (_step("WordWeights"), "step 'm.WordWeights' is not implemented"),
        (_step("Pooling", "../../etc"), "expected a folder's name"),
        (_step("Transformer", ""), "no step is Pooling"),
        (_json("1_Pooling/config.json", {"pooling_mode_magic": True}), "pooling by 'magic'"),
        (
            _json("1_Pooling/config.json", {}),
            "no way of pooling is named; expected one or more of cls, max, mean, mean_s",
        ),
        (_json("1_Pooling/config.json", {"pooling_mode": ["mean", "attention"]}), "pooling by 'attention'"),
        (_json("1_Pooling/config.json", {"pooling_mode": 3}), "pooling by '?'"),
        (_json("modules.json", {"type": 3}), "no step is Pooling"),
        (_json("sentence_bert_config.json", {"max_seq_length": -4}), "max_seq_length"),
        (_gone, "no tokenizer.json or vocab.txt"),
        (_bytes("vocab.txt", b"a\n"), r"\[UNK\], \[CLS\], \[SEP\] is missing"),
        (_bytes("vocab.txt", "\n".join([*PIECES, "more"]).encode()), "take both from one source"),
        (_bytes("tokenizer.json", b"{}"), "not a tokenizer"),
        (_bytes("model.safetensors", struct.pack("<Q", 1 << 60)), "safetensors"),
    ],
)
def test_files_that_are_wrong_are_refused_by_name(
    change: Callable[[Path], object], expected: str, tmp_path: Path
) -> None:
    """The error names the tensor, field or step; nothing is left in the ledger, and what is right elsewhere works."""
    path, good = write_encoder(tmp_path / "bad"), write_encoder(tmp_path / "good")
    change(path)

    async def work(backend: NativeBackend) -> None:
        with pytest.raises(ModelError, match=expected):
            await backend.embed(EmbedRequest(model=str(path), input=["the"]))
        assert not (await backend.engine_state()).memory
        assert (await backend.embed(EmbedRequest(model=str(good), input=["the"]))).vectors

    on(lambda: running(path, good), work)


def test_weights_that_give_no_numbers_are_an_error(tmp_path: Path) -> None:
    """A NaN in a row of the table: a text with that token fails, its neighbours in the batch do not."""
    tensors = tensors_of(SHAPE)
    shape, values = tensors["embeddings.word_embeddings.weight"]
    cat = PIECES.index("cat")
    values[cat * WIDTH] = float("nan")
    tensors["embeddings.word_embeddings.weight"] = (shape, values)
    path = write_encoder(tmp_path, tensors=tensors)

    async def work(backend: NativeBackend) -> None:
        asked = [backend.embed(EmbedRequest(model="", input=[text] * 3)) for text in ("the", "cat", "a")]
        first, second, third = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, EmbedResult)
        assert isinstance(third, EmbedResult)
        assert isinstance(second, PyAgentError)
        assert "no finite numbers" in str(second)

    on(lambda: running(path), work)


def test_encoder_does_not_chat_and_a_chat_model_does_not_embed(encoder: Path, chat_model: Path) -> None:
    """Each request goes to the model that can, named or not; one that names the other is refused, and says why."""

    async def work(backend: NativeBackend) -> None:
        hello = ChatRequest(model="", messages=[Message("user", "the")])
        assert (await collect(backend.chat(hello))).last.model == str(chat_model)
        assert (await backend.embed(EmbedRequest(model="", input=["the"]))).model == str(encoder)
        with pytest.raises(PyAgentError, match="is an encoder, which answers nothing"):
            await collect(backend.chat(ChatRequest(model=str(encoder), messages=hello.messages)))
        with pytest.raises(RequestError, match="cannot embed"):
            await backend.embed(EmbedRequest(model=str(chat_model), input=["the"]))
        listed = {model.id: model.task for model in await backend.models()}
        assert listed == {str(encoder): "embed", str(chat_model): "generate"}

    on(lambda: running(encoder, chat_model), work)


def test_chain_passes_an_encoder_by_for_chats(encoder: Path, chat_model: Path) -> None:
    """`chain = [encoder, model]`: chats go to the second, texts to the first; with the encoder alone it says so."""

    async def work() -> None:
        async with Chain([f"native:{encoder}", f"native:{chat_model}"]) as chain:
            answer = await collect(chain.stream("the"))
            assert answer.last.backend == f"native:{chat_model}"
            assert len((await chain.embed(["the"]))[0]) == WIDTH
        async with Chain([f"native:{encoder}"]) as chain:
            with pytest.raises(PyAgentError, match="is an encoder, which answers nothing"):
                await collect(chain.stream("the"))

    asyncio.run(work())


# -- memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_in_the_ledger_and_given_back(encoder: Path) -> None:
    """Weights, tokenizer and workspace are reserved while it is loaded; sleep gives them back, and a text loads it."""

    async def work(backend: NativeBackend) -> None:
        await backend.load()
        memory = (await backend.engine_state()).memory
        assert {account.partition(":")[0] for account in memory} == {"weights", "tokenizer", "workspace"}
        await backend.sleep(2)
        assert not (await backend.engine_state()).memory
        assert (await backend.embed(EmbedRequest(model="", input=["the"]))).vectors

    on(lambda: running(encoder), work)


def test_encoder_that_does_not_fit_is_refused_before_it_is_loaded(encoder: Path, tmp_path: Path) -> None:
    """One that can never fit says so; one idle goes for another that needs its room."""
    other = write_encoder(tmp_path / "other")

    async def never(backend: NativeBackend) -> None:
        with pytest.raises(ModelError, match=r"raise engine\.memory"):
            await backend.embed(EmbedRequest(model="", input=["the"]))

    on(lambda: running(encoder, memory=10_000), never)

    async def work(backend: NativeBackend) -> None:
        await backend.load()
        held = sum((await backend.engine_state()).memory.values())
        assert isinstance(backend.engine, LocalEngine)
        backend.engine.models.ledger.total_bytes = held * 3 // 2
        assert (await backend.embed(EmbedRequest(model=str(other), input=["the"]))).vectors
        assert [model.id for model in (await backend.engine_state()).models] == [str(other)]

    on(lambda: running(encoder, other), work)


def test_closing_ends_what_waits(encoder: Path) -> None:
    """Texts that wait when the engine is closed fail by name; later ones are not taken."""

    async def work(backend: NativeBackend) -> None:
        await backend.load()
        waiting = asyncio.create_task(backend.embed(EmbedRequest(model="", input=["the cat"] * 2_000)))
        await asyncio.sleep(0.01)
        await backend.close()
        [ended] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(ended, EmbedResult | CapacityError)
        with pytest.raises(CapacityError):
            await backend.embed(EmbedRequest(model="", input=["the"]))

    on(lambda: running(encoder), work)


# -- by other ways --------------------------------------------------------------------------------------------------


def test_engine_and_its_own_process_give_the_same(encoder: Path) -> None:
    """`Engine`, without an event loop, and an engine in a process of its own: the same vectors, the same refusals."""
    with Engine(str(encoder)) as here:
        expected = here.embed(TEXTS)
        assert expected == embedded(encoder, TEXTS).vectors
        assert here.embed([LONG], truncate=True)
    with Engine(str(encoder), process=True) as apart:
        assert apart.embed(TEXTS) == expected
        with pytest.raises(ContextOverflowError, match="input 0 has 102 tokens"):
            apart.embed([LONG])
        assert apart.embed(["the"])


def test_openai_and_ollama_clients_embed(encoder: Path) -> None:
    """Both APIs: floats, base64, dimensions, truncation, counts, and what a model can do."""
    name = str(encoder)
    with (
        serve(create_app(native(encoder))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
        cast("Any", ollama.Client(url)) as theirs,
    ):
        found = client.embeddings.create(model=name, input=TEXTS, encoding_format="float")
        expected = embedded(encoder, TEXTS)
        assert [one.embedding for one in found.data] == expected.vectors
        assert found.usage.prompt_tokens == expected.usage.prompt_tokens
        raw = httpx.post(f"{url}/v1/embeddings", json={"input": "the cat", "encoding_format": "base64"}).json()
        assert array("f", base64.b64decode(raw["data"][0]["embedding"])).tolist() == expected.vectors[0]
        short = client.embeddings.create(model=name, input="the cat", dimensions=8).data[0].embedding
        assert len(short) == 8
        assert sum(x * x for x in short) == pytest.approx(1.0)
        with pytest.raises(openai.BadRequestError, match="the model takes 40") as caught:
            client.embeddings.create(model=name, input=LONG)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        cut = client.embeddings.create(model=name, input=LONG, extra_body={"truncate": True})
        assert cut.usage.prompt_tokens == LONGEST
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["capabilities"] == ["embeddings"]
        with pytest.raises(openai.APIStatusError, match="is an encoder, which answers nothing"):
            client.chat.completions.create(model=name, messages=[{"role": "user", "content": "the"}])
        assert [list(vector) for vector in theirs.embed(name, TEXTS).embeddings] == expected.vectors
        assert len(theirs.embed(name, [LONG]).embeddings) == 1
        with pytest.raises(ollama.ResponseError, match="the model takes 40"):
            theirs.embed(name, [LONG], truncate=False)
        assert list(theirs.embeddings(name, "the cat").embedding) == expected.vectors[0]
        assert httpx.post(f"{url}/api/show", json={"model": name}).json()["capabilities"] == ["embedding"]


def test_commands_know_an_encoder(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`models show` has its card, `models list` its ability, `chain test` embeds with it, `doctor` finds it well."""
    store = tmp_path / "models"
    write_encoder(store / "mine")
    write_json(store / "mine" / "model.json", {"name": "mine", "file": ".", "source": "test"})
    monkeypatch.setenv("PYAGENT_PATHS__MODELS", str(store))
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    assert run_command(["models", "show", str(encoder)]) == 0
    shown = capsys.readouterr().out
    assert "an encoder: it embeds and answers nothing" in shown
    assert "texts of up to 40 tokens, as 24 dimensions" in shown
    assert run_command(["models", "show", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["capabilities"] == ["embeddings"]
    assert run_command(["models", "list", "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)["models"]
    assert (listed["name"], listed["capabilities"]) == ("mine", ["embeddings"])
    assert run_command(["chain", "test", "--chain", "native:mine"]) == 0
    assert "mine embeds" in capsys.readouterr().out
    assert run_command(["doctor", "--chain", "native:mine", "--model", "mine", "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["mine"]["is_well"]
    assert run_command(["search", "--files", str(store), "--json", "word"]) == 0
    assert "words alone" not in capsys.readouterr().err


def test_search_takes_the_embedder_that_is_in_the_store(tmp_path: Path) -> None:
    """`auto` is the store's model that embeds; without one, without the engine, or with `off`, there is none."""
    paths = Paths(models=tmp_path / "models", data=tmp_path / "data")
    settings = Settings(paths=paths)
    host = PluginHost.discover(settings.plugins)
    assert make_embedder(settings, host) is None
    write_encoder(tmp_path / "models" / "mine")
    write_json(tmp_path / "models" / "mine" / "model.json", {"name": "mine", "file": ".", "source": "test"})
    found = make_embedder(settings, host)
    assert found is not None
    assert found.name == "native:mine"
    asyncio.run(found.close())
    off = Settings(paths=paths, search=Search(embedder="off"))
    assert make_embedder(off, host) is None
    assert make_embedder(settings, PluginHost()) is None
