"""Models that label tokens, and process reward models: numbers by the formula, a program, HTTP, the card, refusals."""

from __future__ import annotations

import asyncio
import base64
import math
import random
from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from support.command_line import fresh_environment, pyagent
from support.encoders import native, on
from support.folder_tokenizer import NUM_TOKENS, write_tokenizer
from support.quantizing import refusal
from support.reference_decoder import reference_vectors, write_family
from support.reference_decoder import write_safetensors as write_rows
from support.tiny_encoder import SHAPE, tensors_of, write_encoder, write_safetensors

from pyagent import Chain, Engine, _rust
from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import EmbedRequest, TokenEmbedRequest
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

SPOKEN = [
    {"role": "user", "content": "two and two?"},
    {"role": "assistant", "content": "two and two<extra_0>is four<extra_0>or five<extra_0>"},
]
SOLUTION = "two and two<extra_0>is four<extra_0>or five<extra_0>"


def write_reward_model(folder: Path, *, has_mark: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a tiny random model as Qwen2.5-Math-PRM is published; return its configuration and tensors."""
    config, tensors = write_family(folder, "qwen2", vocab_size=NUM_TOKENS + 3, max_position_embeddings=1_500)
    hidden, draw = config["hidden_size"], random.Random(3)
    for name, shape in [("0.weight", (hidden, hidden)), ("0.bias", (1, hidden)), ("2.weight", (2, hidden))]:
        tensors[f"score.{name}"] = [[draw.gauss(0, 0.3) for _ in range(shape[1])] for _ in range(shape[0])]
    tensors["score.2.bias"] = [[0.1, -0.2]]
    write_rows(folder, config | {"architectures": ["Qwen2ForProcessRewardModel"]}, tensors)
    write_tokenizer(folder)
    if has_mark:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens(["<extra_0>"])
        tokenizer.save(str(folder / "tokenizer.json"))
    return config, tensors


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """A tiny random process reward model, and the numbers of the steps of `SOLUTION` in double precision."""
    folder = tmp_path_factory.mktemp("rewards")
    config, tensors = write_reward_model(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(SOLUTION).ids
    mark = tokenizer.token_to_id("<extra_0>")
    rows = reference_vectors(config, tensors, ids)
    found = [probabilities(tensors, row) for token, row in zip(ids, rows, strict=True) if token == mark]
    assert len(found) == 3
    return folder, found


def probabilities(tensors: dict[str, Any], row: list[float]) -> list[float]:
    def linear(name: str, x: list[float]) -> list[float]:
        weight, [bias] = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return [sum(w * v for w, v in zip(line, x, strict=True)) + b for line, b in zip(weight, bias, strict=True)]

    shares = [math.exp(x) for x in linear("score.2", [max(0.0, x) for x in linear("score.0", row)])]
    return [share / sum(shares) for share in shares]


def near(found: list[list[float]], expected: list[list[float]]) -> bool:
    return [pytest.approx(row, abs=1e-5) for row in expected] == found


def test_steps_of_a_solution_are_scored(rewards: tuple[Path, list[list[float]]]) -> None:
    """Two linears with ReLU between, softmax, at each `<extra_0>`: by `Engine`, a chain and an engine process."""
    path, expected = rewards
    asked = TokenEmbedRequest(model="", input=[SOLUTION, "x<extra_0>"], task="token_classify")
    found = on(lambda: native(path), lambda made: made.token_embed(asked))
    assert near(found.vectors[0], expected)
    assert [len(text) for text in found.vectors] == [3, 1]
    with Engine(str(path), process=True) as apart:
        [steps, _] = apart.token_classify([SOLUTION, "x<extra_0>"])
    assert [list(step) for step in steps] == [["negative", "positive"]] * 3
    assert [[*step.values()] for step in steps] == found.vectors[0]
    long = "and so on " * 120 + "<extra_0>"

    async def chained() -> list[list[dict[str, float]]]:
        async with Chain([f"native:{path}"]) as chain:
            return await chain.token_classify([long, SOLUTION])

    [in_parts, again] = asyncio.run(chained())
    assert (len(in_parts), again) == (1, steps)


def test_steps_over_http_and_on_the_card(rewards: tuple[Path, list[list[float]]], tmp_path: Path) -> None:
    """vLLM's /pooling with `token_classify`, as numbers and as base64; what the model is for; what it is not."""
    path, expected = rewards
    with serve(create_app(native(path))) as url:
        body = {"input": SOLUTION, "task": "token_classify"}
        [found] = httpx.post(f"{url}/pooling", json=body).json()["data"]
        assert near(found["data"], expected)
        [packed] = httpx.post(f"{url}/pooling", json=body | {"encoding_format": "base64"}).json()["data"]
        assert array("f", base64.b64decode(packed["data"])).tolist() == [x for row in found["data"] for x in row]
        [alone] = httpx.post(f"{url}/pooling", json={"input": SOLUTION, "model": path.name}).json()["data"]
        assert alone == found
        template = ModelTokenizer.load(path, vocab_size=NUM_TOKENS + 3).template
        assert template is not None
        for begins in (False, True):
            spoken = {"messages": SPOKEN, "add_generation_prompt": begins}
            told = httpx.post(f"{url}/pooling", json=spoken).json()
            written = template.render(SPOKEN, begins_answer=begins)
            assert written.endswith("assistant\n") == begins
            plain = httpx.post(f"{url}/pooling", json={"input": written}).json()
            assert (told["data"], told["usage"]) == (plain["data"], plain["usage"])
            assert len(told["data"][0]["data"]) == 3
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["capabilities"] == ["token_classify"]
        for door, asked, said in [
            (
                "pooling",
                body | {"input": ["a<extra_0>", "no mark"]},
                "input 1 has no <extra_0>; put one behind each step",
            ),
            (
                "pooling",
                body | {"input": "and so " * 900 + "<extra_0>", "truncate": True},
                "input 0 has no <extra_0> in the 1,500 tokens that are read of it; put one",
            ),
            ("pooling", body | {"task": "token_embed"}, "cannot embed"),
            ("pooling", body | {"task": "embed"}, "for labels of tokens, ask /pooling with"),
            ("pooling", body | {"messages": SPOKEN}, "input and messages exclude each other"),
            ("pooling", {"messages": SPOKEN, "task": "classify"}, "messages are not taken for the task classify"),
            ("pooling", {"messages": [{"role": "tool", "content": "a"}]}, "messages"),
            ("pooling", {"messages": [{"role": "user", "content": ""}]}, "messages: there is no text; send one"),
            ("pooling", {"messages": SPOKEN, "task": "token_embed"}, "cannot embed"),
            ("v1/chat/completions", {"messages": SPOKEN}, "ask this one at /pooling"),
            ("v1/embeddings", {"input": "a<extra_0>"}, "cannot embed"),
            ("v1/classify", {"input": "a<extra_0>"}, "cannot classify texts"),
        ]:
            answer = httpx.post(f"{url}/{door}", json=asked)
            assert (answer.status_code, said in answer.text) == (400, True), answer.text
    card = shown(path, tmp_path)
    assert "qwen2, 3 layers; an encoder: it scores steps and answers nothing" in card
    assert "scores        each step, up to its <extra_0>, of texts of up to 1,500 tokens" in card


def test_models_that_generate_are_not_meant_where_none_is_named(
    rewards: tuple[Path, list[list[float]]], tiny_model_path: Path
) -> None:
    """`/pooling` without model and task, beside a model that chats: what the only model that pools does."""
    path, expected = rewards
    with serve(create_app(native(tiny_model_path, path))) as url:
        [found] = httpx.post(f"{url}/pooling", json={"input": SOLUTION}).json()["data"]
        assert near(found["data"], expected)


def test_a_reward_model_without_the_mark_or_a_matrix_is_refused(tmp_path: Path) -> None:
    """Its tokenizer has no `<extra_0>`; its file has no bias."""
    config, tensors = write_reward_model(tmp_path, has_mark=False)
    asked = TokenEmbedRequest(model="", input=["a"], task="token_classify")
    with pytest.raises(ModelError, match="has no token <extra_0>, at which a process reward model scores a step"):
        on(lambda: native(tmp_path), lambda made: made.token_embed(asked))
    del tensors["score.2.bias"]
    write_rows(tmp_path, config | {"architectures": ["Qwen2ForProcessRewardModel"]}, tensors)
    with pytest.raises(_rust.ModelFileError, match=r"score\.2\.bias"):
        _rust.describe_encoder(tmp_path)


def test_tokens_are_labelled(tmp_path: Path) -> None:
    """A tagger of names as transformers saves it: a number for each label of each token; texts have none."""
    inner = tensors_of(SHAPE)
    draw, hidden = random.Random(1), SHAPE["hidden_size"]
    tensors = {f"bert.{name}": tensor for name, tensor in inner.items()}
    tensors["classifier.weight"] = ([3, hidden], [draw.gauss(0, 0.5) for _ in range(3 * hidden)])
    tensors["classifier.bias"] = ([3], [0.1, 0.2, 0.3])
    path = write_encoder(tmp_path / "m")
    labels = {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}, "architectures": ["BertForTokenClassification"]}
    write_safetensors(path, SHAPE | labels, tensors)
    (path / "modules.json").unlink()
    with Engine(str(path)) as engine:
        [first, second] = engine.token_classify(["the cat", "x"])
    assert [len(first), len(second)] == [4, 3]
    for token in first + second:
        assert [*token] == ["O", "B-PER", "I-PER"]
        assert sum(token.values()) == pytest.approx(1, abs=1e-6)
    card = shown(path, tmp_path)
    assert "labels        3: O, B-PER, I-PER" in card
    with pytest.raises(RequestError, match="labels tokens; name a model that embeds texts"):
        on(lambda: native(path), lambda made: made.engine.embed(EmbedRequest(model=str(path), input=["a"])))
    model = _rust.EncoderModel.load(path, threads=1)
    with pytest.raises(_rust.ModelFileError, match="labels tokens; a text has no numbers of its own"):
        model.compute([[2, 3]])
    assert "its labels have no place there" in refusal(path, "F32")


def shown(path: Path, home: Path) -> str:
    """The model's card."""
    return pyagent("models", "show", str(path), env=fresh_environment(home)).stdout
