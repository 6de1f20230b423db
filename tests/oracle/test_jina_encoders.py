"""jina-embeddings-v2 beside its description: float64 layers written out, as transformers has none of them."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.jina_bert import CONFIG, FORMS, tensors_of, texts, write_jina, write_jina_ranker

from pyagent import _rust

pytestmark = pytest.mark.oracle


def rates(num_heads: int) -> list[float]:
    """ALiBi's rates (Press et al. 2021): for other numbers than powers of two every second one of twice as many."""
    power = 2 ** math.floor(math.log2(num_heads))
    exact = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return exact if power == num_heads else exact + rates(2 * power)[::2][: num_heads - power]


def last_rows(form: str, config: dict[str, Any], tokens: list[int]) -> Any:
    """What the layers give of a text's tokens: norms follow blocks, ALiBi, a gate of GELU."""
    import torch

    raw = tensors_of(form, config)
    tensors = {name: torch.tensor(values, dtype=torch.float64).view(shape) for name, (shape, values) in raw.items()}
    # Files have single precision.
    tensors = {name: tensor.float().double() for name, tensor in tensors.items()}
    heads, hidden = config["num_attention_heads"], config["hidden_size"]

    def norm(x: Any, name: str) -> Any:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return torch.nn.functional.layer_norm(x, (hidden,), weight, bias, config["layer_norm_eps"])

    def linear(x: Any, name: str) -> Any:
        return torch.nn.functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def split(x: Any) -> Any:
        return x.view(len(tokens), heads, -1).transpose(0, 1)

    places = torch.arange(len(tokens))
    distance = (places[:, None] - places[None, :]).abs().double()
    bias = -torch.tensor(rates(heads), dtype=torch.float64)[:, None, None] * distance
    word, kind = tensors["embeddings.word_embeddings.weight"], tensors["embeddings.token_type_embeddings.weight"]
    x = norm(word[torch.tensor(tokens)] + kind[0], "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layer.{layer}."
        query, key, value = (linear(x, f"{place}attention.self.{part}") for part in ("query", "key", "value"))
        if form == "code":
            query = norm(query, f"{place}attention.self.layer_norm_q")
            key = norm(key, f"{place}attention.self.layer_norm_k")
        scores = split(query) @ split(key).transpose(1, 2) / math.sqrt(hidden // heads) + bias
        seen = (scores.softmax(-1) @ split(value)).transpose(0, 1).reshape(len(tokens), hidden)
        attended = norm(linear(seen, f"{place}attention.output.dense") + x, f"{place}attention.output.LayerNorm")
        if form == "code":
            x = norm(x + attended, f"{place}layer_norm_1")
            up, gate = linear(x, f"{place}mlp.up_gated_layer").chunk(2, -1)
            down, last = "mlp.down_layer", "layer_norm_2"
        else:
            x = attended
            gate, up = linear(x, f"{place}mlp.gated_layers").chunk(2, -1)
            down, last = "mlp.wo", "mlp.layernorm"
        x = norm(linear(up * torch.nn.functional.gelu(gate), f"{place}{down}") + x, f"{place}{last}")
    return x


def expected(form: str, config: dict[str, Any], tokens: list[int]) -> Any:
    """A text's vector: the mean of its tokens, of length 1."""
    import torch

    return torch.nn.functional.normalize(last_rows(form, config, tokens).mean(0), dim=0)


@pytest.mark.parametrize("num_heads", [3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_jina_v2_equals_its_description(form: str, num_heads: int, tmp_path: Path) -> None:
    """Each number within 1e-5, of texts that fill a vector of keys and that do not, alone as in a batch."""
    import torch

    path = write_jina(tmp_path / "m", form, num_attention_heads=num_heads, max_position_embeddings=300)
    (path / "sentence_bert_config.json").unlink()
    config = CONFIG | {"num_attention_heads": num_heads}
    asked = texts(1, 2, 16, 17, 70, 290)
    model = _rust.EncoderModel.load(path, threads=2)
    found = torch.tensor(array("f", model.compute(asked))).view(len(asked), -1)
    wanted = torch.stack([expected(form, config, tokens) for tokens in asked])
    assert (found - wanted).abs().max() < 1e-5
    assert b"".join(model.compute([tokens]) for tokens in asked) == model.compute(asked)


def test_a_ranker_equals_its_description(tmp_path: Path) -> None:
    """jina-reranker-v1: a dense layer with tanh over the first token, then the label's number, as a probability."""
    import torch

    path, raw = write_jina_ranker(tmp_path / "m")
    assert _rust.model_task(path) == "rank"

    def linear(x: Any, name: str) -> Any:
        weight, bias = (torch.tensor(raw[f"{name}.{end}"][1], dtype=torch.float64) for end in ("weight", "bias"))
        return torch.nn.functional.linear(x, weight.view(len(bias), -1), bias)

    asked = texts(1, 9, 30)
    found = torch.tensor(array("f", _rust.EncoderModel.load(path, threads=2).compute(asked)))
    first = torch.stack([last_rows("text", CONFIG, tokens)[0] for tokens in asked])
    wanted = torch.sigmoid(linear(torch.tanh(linear(first, "bert.pooler.dense")), "classifier"))[:, 0]
    assert (found - wanted).abs().max() < 1e-5
    assert wanted.std() > 1e-3
