"""Vectors of the embedded engine against transformers on the same weights: mean pooling, length 1."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from support.models import located
from support.tiny_encoder import PIECES, SHAPE, write_classifier, write_encoder

from pyagent import _rust
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens

pytestmark = pytest.mark.oracle

TEXT = (Path(__file__).parents[2] / "docs/explanation/log.md").read_text(encoding="utf-8")
TEXTS = [
    "A cat.",
    "ÄÖÜ naïve café, 東京 и Москва — 𝒳 🙂",
    " ",
    *(TEXT[start : start + length] for start, length in [(0, 40), (900, 200), (2000, 500), (7000, 700)]),
    TEXT[3000:4000],
]


def vectors(packed: bytes, width: int):
    """Vectors as a matrix."""
    import numpy as np

    return np.frombuffer(array("f", packed), dtype=np.float32).reshape(-1, width)


def reference(path: Path, tokens: list[list[int]]):
    """Transformers' vectors, each text alone."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        found = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in tokens]
        return torch.nn.functional.normalize(torch.stack(found), dim=1).numpy()


def test_minilm_equals_transformers_to_1e_5() -> None:
    """The real model, real texts, one of them as long as it takes: tokens are the same, each number within 1e-5."""
    from transformers import AutoTokenizer

    path = located("all-minilm:l6-v2")
    model = _rust.EncoderModel.load(path, threads=2)
    tokens = TextTokens(path, 256, model.info()["vocab_size"]).encode(TEXTS, truncates=True)
    theirs = AutoTokenizer.from_pretrained(path)
    assert tokens == [theirs(text, truncation=True, max_length=256)["input_ids"] for text in TEXTS]
    assert max(map(len, tokens)) == 256
    ours = vectors(model.compute(tokens), 384)
    error = abs(ours - reference(path, tokens)).max()
    print(f"greatest difference: {error:.2e}")
    assert error < 1e-5


@pytest.mark.parametrize("kind", ["bert", "bert, tanh", "roberta", "xlm-roberta"])
def test_tiny_random_encoders_equal_transformers(kind: str, tmp_path: Path) -> None:
    """Each family, random weights, every length that fits: within 1e-5."""
    changes: dict[str, object] = {
        "bert": {},
        "bert, tanh": {"hidden_act": "gelu_new", "type_vocab_size": 1},
        "roberta": {"model_type": "roberta", "pad_token_id": 1, "layer_norm_eps": 1e-5},
        "xlm-roberta": {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1},
    }[kind]
    path = write_encoder(tmp_path / "m", **changes)
    texts = [[2, *((7 * i + length) % (len(PIECES) - 5) + 5 for i in range(length)), 3] for length in range(1, 39)]
    ours = vectors(_rust.EncoderModel.load(path, threads=2).compute(texts), SHAPE["hidden_size"])
    assert abs(ours - reference(path, texts)).max() < 1e-5


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("labels", [["relevance"], ["no", "yes", "perhaps"]])
def test_tiny_random_classifiers_equal_transformers(kind: str, labels: list[str], tmp_path: Path) -> None:
    """Rankers and classifiers of each family, pairs of every length that fits: within 1e-5 of the reference."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    changes: dict[str, object] = {} if kind == "bert" else {"model_type": kind, "pad_token_id": 1}
    path = write_classifier(tmp_path / "m", labels, **changes)
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    words = ["the", "cat", "abc", "x", "zy"]
    pairs = [(" ".join(words[: 1 + i % 4]), " ".join(words[(i + j) % 5] for j in range(1 + i))) for i in range(8)]
    ours_tokens = TextTokens(path, 46, len(PIECES)).encode(pairs)
    ours = vectors(_rust.EncoderModel.load(path, threads=2).compute(ours_tokens), len(labels))
    rows: list[torch.Tensor] = []
    if kind == "bert":
        theirs = AutoTokenizer.from_pretrained(path)
        asked = [theirs(*pair, return_tensors="pt") for pair in pairs]
        mine = [[token & ~(1 << 31) for token in tokens] for tokens in ours_tokens]
        assert mine == [one["input_ids"][0].tolist() for one in asked]
        kinds = [[token >> 31 for token in tokens] for tokens in ours_tokens]
        assert kinds == [one["token_type_ids"][0].tolist() for one in asked]
    else:  # their tokenizers name no second text
        asked = [{"input_ids": torch.tensor([[token & ~(1 << 31) for token in one]])} for one in ours_tokens]
    with torch.inference_mode():
        rows = [model(**one).logits[0] for one in asked]
    logits = torch.stack(rows)
    expected = torch.sigmoid(logits) if len(labels) == 1 else torch.softmax(logits, dim=1)
    assert abs(ours - expected.numpy()).max() < 1e-5
    assert logits.std(dim=0).min() > 1e-3  # pairs differ
