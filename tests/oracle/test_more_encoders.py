"""Encoders of transformers' beside the engine's: embedding, ranking and classifying, from folders that it saves."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyagent import _rust

pytestmark = pytest.mark.oracle

SHAPE: dict[str, Any] = {"vocab_size": 90, "max_position_embeddings": 200, "initializer_range": 0.3}
BERT = SHAPE | {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
KINDS: dict[str, dict[str, Any]] = {
    "mpnet": BERT | {"pad_token_id": 1},
    "jina_embeddings_v3": BERT | {"pad_token_id": 1},
    "eurobert": BERT
    | {"hidden_size": 64, "mask_token_id": 3}
    | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "distilbert": SHAPE | {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 80, "pad_token_id": 0},
    "distilbert, sinusoids": SHAPE
    | {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 80, "pad_token_id": 0, "sinusoidal_pos_embds": True},
}
TEXTS = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 2, 17, 40, 150)]


def saved(kind: str, folder: Path, *, num_labels: int | None = None) -> Any:
    """Save a tiny random encoder, with a head for labels; return transformers' own."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    torch.manual_seed(7)
    labels = {} if num_labels is None else {"num_labels": num_labels}
    config = AutoConfig.for_model(kind.partition(",")[0], **(KINDS[kind] | labels))
    config._attn_implementation = "eager"
    made = (AutoModel if num_labels is None else AutoModelForSequenceClassification).from_config(config).eval()
    with torch.no_grad():
        for name, tensor in made.named_parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.2)
            elif "weight" in name:
                tensor.copy_(torch.randn_like(tensor) * 0.2)
    made.save_pretrained(folder)
    return made


def computed(model: _rust.EncoderModel, texts: Sequence[list[int]]) -> Any:
    import torch

    return torch.tensor(array("f", model.compute(list(texts)))).view(len(texts), -1)


@pytest.mark.parametrize("kind", KINDS)
def test_more_encoders_equal_transformers(kind: str, tmp_path: Path) -> None:
    """Texts of lengths around each bucket of distances, alone and in one batch: mean vectors within 1e-5."""
    import torch

    theirs = saved(kind, tmp_path)
    assert _rust.model_task(tmp_path) == "embed"
    ours = _rust.EncoderModel.load(tmp_path, threads=2)
    together = computed(ours, TEXTS)
    assert torch.equal(torch.cat([computed(ours, [text]) for text in TEXTS]), together)
    with torch.inference_mode():
        rows = [theirs(torch.tensor([text])).last_hidden_state[0].mean(0) for text in TEXTS]
    assert (together - torch.nn.functional.normalize(torch.stack(rows), dim=1)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("kind", "num_labels"), [("mpnet", 1), ("jina_embeddings_v3", 1), ("distilbert", 1), ("distilbert", 3)]
)
def test_more_encoders_rank_and_classify_as_transformers_do(kind: str, num_labels: int, tmp_path: Path) -> None:
    """One label ranks, several classify: each number within 1e-5."""
    import torch

    theirs = saved(kind, tmp_path, num_labels=num_labels)
    assert _rust.model_task(tmp_path) == ("rank" if num_labels == 1 else "classify")
    found = computed(_rust.EncoderModel.load(tmp_path, threads=2), TEXTS)
    with torch.inference_mode():
        logits = torch.stack([theirs(torch.tensor([text])).logits[0] for text in TEXTS])
    expected = torch.sigmoid(logits) if num_labels == 1 else torch.softmax(logits, dim=1)
    assert (found - expected).abs().max() < 1e-5
    assert logits.std(dim=0).min() > 1e-3  # texts differ
