"""nomic-embed-text-v2-moe beside its description: float64 layers written out, as transformers has no experts of its."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.jina_bert import texts
from support.nomic_moe import CONFIG, tensors_of, write_nomic_moe

from pyagent import _rust

pytestmark = pytest.mark.oracle


def expected(tensors: dict[str, Any], tokens: list[int]) -> Any:
    """A text's vector: rotary positions, norms after blocks, in each second layer the two likeliest of five experts."""
    import torch

    hidden, heads, ffn = CONFIG["n_embd"], CONFIG["n_head"], CONFIG["n_inner"]
    width, functional = hidden // heads, torch.nn.functional

    def norm(x: Any, name: str) -> Any:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return functional.layer_norm(x, (hidden,), weight, bias, CONFIG["layer_norm_epsilon"])

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def turned(x: Any) -> Any:
        rates = CONFIG["rotary_emb_base"] ** (-torch.arange(0, width, 2).double() / width)
        angles = torch.arange(len(tokens)).double()[:, None] * rates
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def experts(x: Any, place: str) -> Any:
        weights, chosen = linear(x, f"{place}router.layer").softmax(-1).topk(CONFIG["moe_top_k"])
        w1 = tensors[f"{place}experts.mlp.w1"].view(-1, ffn, hidden)
        w2 = tensors[f"{place}experts.mlp.w2"].view(-1, ffn, hidden)
        rows = [
            sum(w * (functional.gelu(row @ w1[e].T) @ w2[e]) for w, e in zip(of, which, strict=True))
            for row, of, which in zip(x, weights, chosen, strict=True)
        ]
        return torch.stack(rows) + tensors[f"{place}experts.bias"]

    x = tensors["embeddings.word_embeddings.weight"][torch.tensor(tokens)]
    x = norm(x + tensors["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for layer in range(CONFIG["n_layer"]):
        place = f"encoder.layers.{layer}."
        query, key, value = (
            part.view(len(tokens), heads, width).transpose(0, 1) for part in linear(x, f"{place}attn.Wqkv").chunk(3, -1)
        )
        scores = turned(query) @ turned(key).transpose(1, 2) / math.sqrt(width)
        seen = (scores.softmax(-1) @ value).transpose(0, 1).reshape(len(tokens), hidden)
        x = norm(x + linear(seen, f"{place}attn.out_proj"), f"{place}norm1")
        if layer % CONFIG["moe_every_n_layers"] == 1:
            given = experts(x, f"{place}mlp.")
        else:
            given = linear(functional.gelu(linear(x, f"{place}mlp.fc1")), f"{place}mlp.fc2")
        x = norm(x + given, f"{place}norm2")
    return functional.normalize(x.mean(0), dim=0)


def test_nomic_moe_equals_its_description(tmp_path: Path) -> None:
    """Each number within 1e-5, alone as in a batch of more tokens than a tile."""
    import torch

    path = write_nomic_moe(tmp_path / "m")
    model = _rust.EncoderModel.load(path, threads=2)
    asked = texts(1, 2, 17, 70, 290)
    found = torch.tensor(array("f", model.compute(asked))).view(len(asked), -1)
    tensors = {name: torch.tensor(values).double().view(shape) for name, (shape, values) in tensors_of().items()}
    wanted = torch.stack([expected(tensors, tokens) for tokens in asked])
    assert (found - wanted).abs().max() < 1e-5
    assert b"".join(model.compute([tokens]) for tokens in asked) == model.compute(asked)
