"""Labels of tokens and scores of steps against transformers on the same weights, and decoders' texts in parts."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from pyagent import _rust

pytestmark = pytest.mark.oracle

TEXTS = [[(13 * i + 7 * length) % 80 + 5 for i in range(length)] for length in (1, 7, 40)]
SIZES = {
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 130,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
OWN = {
    "roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "distilbert": {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 80},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8, "classifier_pooling": "mean"},
    "qwen2": {"num_attention_heads": 3, "num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
}


def rows(packed: bytes, width: int):
    """Rows as a matrix."""
    import numpy as np

    return np.frombuffer(array("f", packed), dtype=np.float32).reshape(-1, width)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert", "qwen2"])
@pytest.mark.parametrize("num_labels", [1, 5])
def test_labels_of_tokens_equal_transformers(kind: str, num_labels: int, tmp_path: Path) -> None:
    """Tiny random `ForTokenClassification` of each family: each token's probabilities within 1e-5."""
    import torch
    from transformers import AutoConfig, AutoModelForTokenClassification

    torch.manual_seed(5)
    config = AutoConfig.for_model(kind, num_labels=num_labels, **(SIZES | OWN.get(kind, {})))
    config._attn_implementation = "eager"
    made = AutoModelForTokenClassification.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in made.named_parameters():
            if "bias" in name or "norm" in name.lower():
                tensor.add_(torch.randn_like(tensor) * 0.2)
    made.save_pretrained(tmp_path)
    assert _rust.model_task(tmp_path) == "token_classify"
    ours = rows(_rust.EncoderModel.load(tmp_path, threads=2).compute_tokens(TEXTS), num_labels)
    with torch.inference_mode():
        logits = torch.cat([made(torch.tensor([text])).logits[0] for text in TEXTS])
    expected = torch.sigmoid(logits) if num_labels == 1 else torch.softmax(logits, dim=1)
    assert abs(ours - expected.numpy()).max() < 1e-5
    assert logits.std(dim=0).min() > 1e-2  # tokens differ


def test_steps_are_scored_as_by_the_published_head(tmp_path: Path) -> None:
    """Qwen2.5-Math-PRM's layout and fields: Qwen2Model, two linears with ReLU between, softmax; whole and in parts."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2Model

    torch.manual_seed(6)
    sizes = SIZES | OWN["qwen2"] | {"rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "use_sliding_window": False}
    model = Qwen2Model._from_config(Qwen2Config(**sizes, sliding_window=131_072), attn_implementation="eager").eval()
    head = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.ReLU(), torch.nn.Linear(48, 2)).eval()
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"score.{name}": tensor for name, tensor in head.state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    of_code = {"AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig", "AutoModel": "modeling_qwen2_rm.X"}
    named = {"architectures": ["Qwen2ForProcessRewardModel"], "auto_map": of_code, "model_type": "qwen2"}
    fields = sizes | named | {"sliding_window": 131_072, "use_mrope": False, "tie_word_embeddings": False}
    fields |= {"hidden_act": "silu", "max_window_layers": 28, "use_cache": True, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    ours = rows(_rust.EncoderModel.load(tmp_path, threads=2).compute_tokens(TEXTS), 2)
    with torch.inference_mode():
        states = torch.cat([model(torch.tensor([text])).last_hidden_state[0] for text in TEXTS])
        expected = torch.softmax(head(states), dim=1).numpy()
    assert abs(ours - expected).max() < 1e-5
    assert expected[:, 1].std() > 1e-2
    parts = _rust.EncoderModel.load(tmp_path, threads=2, most_tokens=9)
    begun = parts.begin(TEXTS[-1], gives_tokens=True)
    while (found := parts.advance(begun)) is None:
        pass
    assert (rows(found, 2) == ours[-40:]).all()


def test_a_text_in_parts_equals_transformers(tmp_path: Path) -> None:
    """120 tokens of a tiny random Qwen 3 in parts of 32, pooled by the mean: within 1e-5."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(7)
    made = AutoModel.from_config(AutoConfig.for_model("qwen3", **(SIZES | OWN["qwen3"]))).eval()
    made.save_pretrained(tmp_path)
    steps = [{"idx": 0, "path": "", "type": "m.Transformer"}, {"idx": 1, "path": "1_Pooling", "type": "m.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(steps), encoding="utf-8")
    (tmp_path / "1_Pooling").mkdir()
    modes = json.dumps({"pooling_mode_mean_tokens": True})
    (tmp_path / "1_Pooling" / "config.json").write_text(modes, encoding="utf-8")
    text = [(13 * i + i * i) % 80 + 5 for i in range(120)]
    model = _rust.EncoderModel.load(tmp_path, threads=2, most_tokens=32)
    begun = model.begin(text, gives_tokens=False)
    while (found := model.advance(begun)) is None:
        pass
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(made(torch.tensor([text])).last_hidden_state.mean(1), dim=1).numpy()
    assert abs(rows(found, 48) - expected).max() < 1e-5
