"""jina-embeddings-v2 beside its description: float64 layers written out, as transformers has none of them."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from support import jina_v3
from support.jina_bert import CONFIG, FORMS, tensors_of, texts, write_jina, write_jina_ranker

from pyagent import _rust

pytestmark = pytest.mark.oracle


def rates(num_heads: int) -> list[float]:
    """ALiBi's rates (Press et al. 2021): for other numbers than powers of two every second one of twice as many."""
    power = 2 ** math.floor(math.log2(num_heads))
    exact = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return exact if power == num_heads else exact + rates(2 * power)[::2][: num_heads - power]


def last_rows(form: str, config: dict[str, Any], tokens: list[int], *, is_gate_first: bool = False) -> Any:
    """What the layers give of a text's tokens: norms follow blocks, ALiBi, a gate of GELU.

    The code model's gate is the second half of its matrix, and the first one where `is_gate_first` says so.
    """
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
            up, gate = (gate, up) if is_gate_first else (up, gate)
            down, last = "mlp.down_layer", "layer_norm_2"
        else:
            x = attended
            gate, up = linear(x, f"{place}mlp.gated_layers").chunk(2, -1)
            down, last = "mlp.wo", "mlp.layernorm"
        x = norm(linear(up * torch.nn.functional.gelu(gate), f"{place}{down}") + x, f"{place}{last}")
    return x


def expected(form: str, config: dict[str, Any], tokens: list[int], **how: bool) -> Any:
    """A text's vector: the mean of its tokens, of length 1."""
    import torch

    return torch.nn.functional.normalize(last_rows(form, config, tokens, **how).mean(0), dim=0)


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


def adapted(task: int | None) -> dict[str, Any]:
    """The weights of transformers' model for one task: `W + alpha / rank * B A`, of tables `A B`."""
    import torch

    raw = {
        name.removeprefix("roberta."): torch.tensor(values).view(shape)
        for name, (shape, values) in jina_v3.tensors_of(jina_v3.CONFIG).items()
    }
    scale = jina_v3.CONFIG["lora_alpha"] / jina_v3.CONFIG["lora_rank"]

    def weight(name: str) -> Any:
        whole = raw[f"{name}.parametrizations.weight.original"].double()
        if task is not None:
            a, b = (raw[f"{name}.parametrizations.weight.0.lora_{which}"][task].double() for which in "AB")
            whole = whole + scale * (a @ b if "embeddings" in name else b @ a)
        return whole

    found = {
        f"{name}.weight": weight(name) for name in ("embeddings.word_embeddings", "embeddings.token_type_embeddings")
    }
    norms = {"emb_ln": "embeddings.LayerNorm"}
    for layer in range(jina_v3.CONFIG["num_hidden_layers"]):
        old, new = f"encoder.layers.{layer}.", f"layers.{layer}."
        norms |= {f"{old}norm1": f"{new}post_attention_layernorm", f"{old}norm2": f"{new}post_mlp_layernorm"}
        parts = [f"{new}self_attn.{letter}_proj" for letter in "qkv"]
        for part, rows in zip(parts, weight(f"{old}mixer.Wqkv").chunk(3), strict=True):
            found[f"{part}.weight"] = rows
        for part, rows in zip(parts, raw[f"{old}mixer.Wqkv.bias"].chunk(3), strict=True):
            found[f"{part}.bias"] = rows
        for own, theirs in (("mixer.out_proj", "self_attn.o_proj"), ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2")):
            found |= {f"{new}{theirs}.weight": weight(old + own), f"{new}{theirs}.bias": raw[f"{old}{own}.bias"]}
    for own, theirs in norms.items():
        found |= {f"{theirs}.{end}": raw[f"{own}.{end}"] for end in ("weight", "bias")}
    return found


def test_tasks_of_jina_v3_equal_merged_weights(tmp_path: Path) -> None:
    """Each task, and none, mixed in one batch: transformers' vectors with the task's weights in float64, to 1e-5."""
    import torch
    from transformers import AutoConfig, AutoModel

    path = jina_v3.write_jina_v3(tmp_path / "m")
    (path / "sentence_bert_config.json").unlink()
    ours = _rust.EncoderModel.load(path, threads=2)
    assert [name for name, _ in ours.info()["tasks"]] == jina_v3.TASKS
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shape = {name: jina_v3.CONFIG[name] for name in names}
    config = AutoConfig.for_model("jina_embeddings_v3", max_position_embeddings=258, **shape)
    config._attn_implementation = "eager"
    asked = [(number % 4, tokens) for number, tokens in enumerate(texts(1, 9, 17, 40, 70, 256, 33, 5))]
    found = torch.tensor(array("f", ours.compute([jina_v3.of_task(tokens, task) for task, tokens in asked]))).view(
        8, -1
    )
    for task in range(4):
        theirs = AutoModel.from_config(config, add_pooling_layer=False).double().eval()
        theirs.load_state_dict(adapted(task - 1 if task else None))
        for (of, tokens), row in zip(asked, found, strict=True):
            if of == task:
                with torch.inference_mode():
                    rows = theirs(torch.tensor([tokens])).last_hidden_state[0].mean(0)
                assert (row - torch.nn.functional.normalize(rows, dim=0)).abs().max() < 1e-5
    alone = b"".join(ours.compute([jina_v3.of_task(tokens, task)]) for task, tokens in asked)
    assert torch.equal(torch.tensor(array("f", alone)).view(8, -1), found)
