"""Vectors of the embedded engine against transformers on the same weights: mean pooling, length 1."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from support.gguf_writer import write_gguf
from support.models import located
from support.tiny_encoder import (
    PIECES,
    POOLINGS,
    SHAPE,
    write_classifier,
    write_encoder,
    write_json,
    write_late_encoder,
)

from pyagent import _rust
from pyagent.infrastructure.engine.encoders.late_tokens import LateTokens
from pyagent.infrastructure.engine.encoders.pair_template import PairTemplate
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


DECODERS: dict[str, dict[str, object]] = {
    "qwen3": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "mistral": {"sliding_window": 7},
    "llama": {},
    "olmo2": {},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2},
    "gemma3_text, both ways": {
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 2,
        "use_bidirectional_attention": True,
    },
}


def save_decoder(kind: str, folder: Path, *, num_labels: int | None = None):
    """Save a tiny random decoder with a head, or as a model that embeds; return transformers' own."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    torch.manual_seed(11)
    shape = {
        "vocab_size": 90,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 80,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    labels = {} if num_labels is None else {"num_labels": num_labels}
    config = AutoConfig.for_model(kind.partition(",")[0], **(shape | DECODERS[kind] | labels))
    config._attn_implementation = "eager"
    made = (AutoModel if num_labels is None else AutoModelForSequenceClassification).from_config(config).eval()
    with torch.no_grad():
        for name, tensor in made.named_parameters():
            if "norm" in name:
                tensor.add_(torch.randn_like(tensor) * 0.2)
    made.save_pretrained(folder)
    return made


def test_dense_steps_follow_pooling(tmp_path: Path) -> None:
    """Two dense layers as EmbeddingGemma has them, one with a bias and tanh: within 1e-5 of the same in torch."""
    import torch
    from safetensors.torch import save_file

    model = save_decoder("qwen3", tmp_path)
    torch.manual_seed(3)
    layers = [torch.nn.Linear(48, 96, bias=False), torch.nn.Linear(96, 20)]
    steps = [{"idx": 0, "name": "0", "path": "", "type": "m.Transformer"}]
    steps.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "m.Pooling"})
    for number, layer in enumerate(layers, 2):
        folder = tmp_path / f"{number}_Dense"
        folder.mkdir()
        about = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        activation = "torch.nn.modules.linear.Identity" if number == 2 else "torch.nn.modules.activation.Tanh"
        write_json(folder / "config.json", about | {"activation_function": activation})
        save_file({f"linear.{name}": value for name, value in layer.state_dict().items()}, folder / "model.safetensors")
        steps.append({"idx": number, "name": str(number), "path": folder.name, "type": "m.Dense"})
    write_json(tmp_path / "modules.json", steps)
    (tmp_path / "1_Pooling").mkdir()
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    texts = [[(13 * i + length) % 85 + 3 for i in range(length)] for length in (1, 9, 30)]
    ours = _rust.EncoderModel.load(tmp_path, threads=2)
    assert ours.info()["num_dimensions"] == 20
    with torch.inference_mode():
        rows = torch.stack([model(torch.tensor([text])).last_hidden_state[0].mean(0) for text in texts])
        expected = torch.nn.functional.normalize(torch.tanh(layers[1](layers[0](rows))), dim=1).numpy()
    assert abs(vectors(ours.compute(texts), 20) - expected).max() < 1e-5


@pytest.mark.parametrize("pooling", [*POOLINGS, "cls_token mean_tokens", " ".join(POOLINGS)])
def test_poolings_equal_their_formulas_over_transformers(pooling: str, tmp_path: Path) -> None:
    """Each of sentence-transformers' poolings, and several joined, alone and before a dense step with tanh: to 1e-5."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel

    path = write_encoder(tmp_path / "m", pooling=pooling)
    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    texts = [[2, *((7 * i + length) % (len(PIECES) - 5) + 5 for i in range(length)), 3] for length in (0, 3, 20)]
    with torch.inference_mode():
        states = [model(torch.tensor([text])).last_hidden_state[0].double() for text in texts]
    count = [len(text) for text in texts]
    weights = [torch.arange(1, number + 1, dtype=torch.float64) for number in count]
    formulas = {
        "cls_token": [one[0] for one in states],
        "max_tokens": [one.max(0).values for one in states],
        "mean_tokens": [one.mean(0) for one in states],
        "mean_sqrt_len_tokens": [one.sum(0) / number**0.5 for one, number in zip(states, count, strict=True)],
        "weightedmean_tokens": [weight @ one / weight.sum() for one, weight in zip(states, weights, strict=True)],
        "lasttoken": [one[-1] for one in states],
    }
    chosen = [formulas[name] for name in POOLINGS if name in pooling.split()]
    pooled = torch.stack([torch.cat(parts) for parts in zip(*chosen, strict=True)])
    width = pooled.shape[1]
    ours = vectors(_rust.EncoderModel.load(path, threads=2).compute(texts), width)
    assert abs(ours - torch.nn.functional.normalize(pooled, dim=1).numpy()).max() < 1e-5
    torch.manual_seed(4)
    layer = torch.nn.Linear(width, 9).double()
    (path / "2_Dense").mkdir()
    save_file({f"linear.{k}": v.float() for k, v in layer.state_dict().items()}, path / "2_Dense/model.safetensors")
    write_json(path / "2_Dense/config.json", {"in_features": width, "out_features": 9, "bias": True})
    steps = json.loads((path / "modules.json").read_text(encoding="utf-8"))
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "m.Dense"}
    write_json(path / "modules.json", [*steps[:2], dense])
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(torch.tanh(layer(pooled)), dim=1).numpy()
    ours = vectors(_rust.EncoderModel.load(path, threads=2).compute(texts), 9)
    assert abs(ours - expected).max() < 1e-5


@pytest.mark.parametrize("kind", [*DECODERS])
def test_decoders_that_embed_equal_transformers(kind: str, tmp_path: Path) -> None:
    """Texts of lengths beyond each window, alone and in one batch: last-token vectors within 1e-5."""
    import numpy as np
    import torch

    model = save_decoder(kind, tmp_path)
    steps = [{"idx": 0, "name": "0", "path": "", "type": "m.Transformer"}]
    steps.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "m.Pooling"})
    write_json(tmp_path / "modules.json", steps)
    (tmp_path / "1_Pooling").mkdir()
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    assert _rust.model_task(tmp_path) == "embed"
    texts = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 2, 5, 17, 40, 67, 130)]
    ours = _rust.EncoderModel.load(tmp_path, threads=2)
    together = vectors(ours.compute(texts), 48)
    assert all((vectors(ours.compute([text]), 48) == row).all() for text, row in zip(texts, together, strict=True))
    with torch.inference_mode():
        rows = [model(torch.tensor([text])).last_hidden_state[0, -1] for text in texts]
        expected = torch.nn.functional.normalize(torch.stack(rows), dim=1).numpy()
    assert np.abs(together - expected).max() < 1e-5


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_decoders_that_rank_equal_transformers(kind: str, num_labels: int, tmp_path: Path) -> None:
    """`...ForSequenceClassification` of decoders: what the last token gives, within 1e-5."""
    import torch

    model = save_decoder(kind, tmp_path, num_labels=num_labels)
    assert _rust.model_task(tmp_path) == ("rank" if num_labels == 1 else "classify")
    texts = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 5, 40)]
    ours = vectors(_rust.EncoderModel.load(tmp_path, threads=2).compute(texts), num_labels)
    with torch.inference_mode():
        logits = torch.stack([model(torch.tensor([text])).logits[0] for text in texts])
    expected = torch.sigmoid(logits) if num_labels == 1 else torch.softmax(logits, dim=1)
    assert abs(ours - expected.numpy()).max() < 1e-5


ROTARY_ENCODERS: dict[str, dict[str, object]] = {
    "modernbert": {"local_attention": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1},
    "modernbert, biases": {
        "local_attention": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "hidden_activation": "gelu_new",
    },
    "nomic_bert": {},
    "gte": {"type_vocab_size": 0, "pad_token_id": 0},
    "gte, types": {
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 9},
    },
}


def save_rotary_encoder(kind: str, folder: Path, *, num_labels: int | None = None, **changes: object):
    """Save a tiny random encoder with rotary positions, with a head for labels; return transformers' own."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    torch.manual_seed(7)
    shape = {
        "vocab_size": 90,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
    }
    labels = {} if num_labels is None else {"num_labels": num_labels}
    config = AutoConfig.for_model(kind.partition(",")[0], **(shape | ROTARY_ENCODERS[kind] | labels | changes))
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


@pytest.mark.parametrize("kind", [*ROTARY_ENCODERS])
def test_encoders_with_rotary_positions_equal_transformers(kind: str, tmp_path: Path) -> None:
    """Texts of lengths beyond each window, alone and in one batch: mean vectors within 1e-5."""
    import numpy as np
    import torch

    model = save_rotary_encoder(kind, tmp_path)
    assert _rust.model_task(tmp_path) == "embed"
    texts = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 2, 5, 17, 40, 67, 130)]
    ours = _rust.EncoderModel.load(tmp_path, threads=2)
    together = vectors(ours.compute(texts), 48)
    assert all((vectors(ours.compute([text]), 48) == row).all() for text, row in zip(texts, together, strict=True))
    with torch.inference_mode():
        rows = [model(torch.tensor([text])).last_hidden_state[0].mean(0) for text in texts]
        expected = torch.nn.functional.normalize(torch.stack(rows), dim=1).numpy()
    assert np.abs(together - expected).max() < 1e-5


@pytest.mark.parametrize("kind", ["modernbert", "gte", "nomic_bert"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_encoders_with_rotary_positions_rank_as_transformers_do(kind: str, num_labels: int, tmp_path: Path) -> None:
    """Rankers and classifiers, of the first token and of the mean: within 1e-5."""
    import torch

    changes: dict[str, object] = {"classifier_pooling": "mean"} if kind == "modernbert" and num_labels > 1 else {}
    model = save_rotary_encoder(kind, tmp_path, num_labels=num_labels, **changes)
    assert _rust.model_task(tmp_path) == ("rank" if num_labels == 1 else "classify")
    texts = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 5, 40)]
    ours = vectors(_rust.EncoderModel.load(tmp_path, threads=2).compute(texts), num_labels)
    with torch.inference_mode():
        logits = torch.stack([model(torch.tensor([text])).logits[0] for text in texts])
    expected = torch.sigmoid(logits) if num_labels == 1 else torch.softmax(logits, dim=1)
    assert abs(ours - expected.numpy()).max() < 1e-5
    assert logits.std(dim=0).min() > 1e-3  # texts differ


PAIR_TEMPLATE = (
    "{%- set ns = namespace(i='Judge.') %}"
    "{%- for m in messages %}{% if m.role == 'system' %}{% set ns.i = m.content %}{% endif %}{% endfor %}"
    "<|im_start|>user\n<Instruct>: {{ ns.i }}\n"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>\n<|im_start|>assistant\n"
)


def write_word_ranker(folder: Path, *, no: bool = True, merges: tuple[tuple[str, str], ...] = (), **changes: object):
    """Save a tiny random decoder that ranks by its words, with its steps and template; return transformers' own."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(2)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*map("".join, merges), "<|im_start|>", "<|im_end|>", "yes", "no"]
    ids = {piece: number for number, piece in enumerate([*pieces, *words])}
    inner = Tokenizer(models.BPE(vocab=ids, merges=[*merges]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"head_dim": 16, "intermediate_size": 48, "max_position_embeddings": 512, "initializer_range": 0.3}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen3", vocab_size=len(ids), **shape, **changes)
    ).eval()
    model.save_pretrained(folder)
    inner.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "chat_template.jinja").write_text(PAIR_TEMPLATE, encoding="utf-8")
    kinds = [("", "sentence_transformers.base.modules.transformer.Transformer")]
    kinds.append(("1_LogitScore", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"))
    steps = [
        {"idx": number, "name": str(number), "path": path, "type": kind} for number, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", steps)
    (folder / "1_LogitScore").mkdir()
    about = {"true_token_id": ids["yes"], "false_token_id": ids["no"] if no else None}
    write_json(folder / "1_LogitScore" / "config.json", about)
    return model


@pytest.mark.parametrize(("no", "is_tied", "instruction"), [(True, True, "Find cats."), (False, False, "")])
def test_decoders_that_rank_by_words_equal_transformers(
    no: bool, is_tied: bool, instruction: str, tmp_path: Path
) -> None:
    """The same tokens by the template, markers in a document kept as text, and the same relevance within 1e-5."""
    import torch
    from transformers import AutoTokenizer

    model = write_word_ranker(tmp_path, no=no, tie_word_embeddings=is_tied)
    if instruction:
        prompts = {"prompts": {"web": instruction}, "default_prompt_name": "web"}
        write_json(tmp_path / "config_sentence_transformers.json", prompts)
    assert _rust.model_task(tmp_path) == "rank"
    about = _rust.describe_encoder(tmp_path)
    assert about is not None
    assert about["ranks_by_words"]
    pairs = [("a cat?", "A cat is an animal."), ("ÄÖ", "x" * 200), ("q", "no <|im_end|> here")]
    shown = PairTemplate.of(tmp_path, about["vocab_size"])
    assert shown is not None
    tokens = TextTokens(tmp_path, about["max_tokens"], about["vocab_size"], shown).encode(pairs)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for pair, ours in zip(pairs[:2], tokens, strict=False):
        messages = [{"role": role, "content": text} for role, text in zip(("query", "document"), pair, strict=True)]
        system = [{"role": "system", "content": instruction}] if instruction else []
        text = theirs.apply_chat_template([*system, *messages], tokenize=False)
        assert ours == theirs(text, add_special_tokens=False)["input_ids"]
    assert tokens[2].count(theirs.convert_tokens_to_ids("<|im_end|>")) == 1
    found = vectors(_rust.EncoderModel.load(tmp_path, threads=2).compute(tokens), 1)[:, 0]
    yes, other = (theirs.convert_tokens_to_ids(word) for word in ("yes", "no"))
    with torch.inference_mode():
        logits = torch.stack([model(torch.tensor([one])).logits[0, -1] for one in tokens])
    expected = torch.sigmoid(logits[:, yes] - logits[:, other] if no else logits[:, yes])
    assert abs(found - expected.numpy()).max() < 1e-5
    assert expected.std() > 1e-3


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("is_seen", [False, True])
def test_models_of_late_interaction_equal_transformers(kind: str, is_seen: bool, tmp_path: Path) -> None:
    """A vector for each token of queries, filled up beyond ModernBERT's window, and of documents: within 1e-5."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel

    encoder, hidden = (None, 24) if kind == "bert" else (tmp_path / "m", 48)
    if encoder is not None:
        save_rotary_encoder(kind, encoder)
        (encoder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    path = write_late_encoder(tmp_path / "m", encoder=encoder, hidden=hidden, attend_to_expansion_tokens=is_seen)
    ours = _rust.EncoderModel.load(path, threads=2)
    tokens = LateTokens(path, TextTokens(path, ours.info()["max_tokens"], ours.info()["vocab_size"]))
    asked = [*tokens.queries(["ab c", "the cat"]), *tokens.documents(["x y zy", "q w e r t z u i"])]
    long = [2, 57, *range(6, 41), 3]  # the last that fills it up sees one of its own within the window
    asked.append(long + [4 | (0 if is_seen else 1 << 30)] * (46 - len(long)))
    assert [len(one) for one in asked] == [12, 12, 7, 11, 46]
    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    dense = load_file(path / "1_Dense" / "model.safetensors")["linear.weight"]
    expected: list[torch.Tensor] = []
    with torch.inference_mode():
        for one in asked:
            mask = torch.tensor([[int(token < 1 << 30) for token in one]])
            ids = torch.tensor([[token & ~(1 << 30) for token in one]])
            states = model(ids, attention_mask=mask).last_hidden_state[0]
            expected.append(torch.nn.functional.normalize(states @ dense.T, dim=1))
    found = vectors(ours.compute_tokens(asked), 10)
    assert abs(found - torch.cat(expected).numpy()).max() < 1e-5


def test_a_gguf_file_of_nomic_bert_equals_its_folder(tmp_path: Path) -> None:
    """The same weights under llama.cpp's names, and Nomic's own names in `config.json`: the same bits."""
    from safetensors.numpy import load_file

    save_rotary_encoder("nomic_bert", tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(tmp_path / "folder" / "model.safetensors")
    parts = {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up"}
    parts |= {"mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm"}
    tops = {"embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types"}
    tops |= {"emb_ln": "token_embd_norm"}

    def named(name: str) -> str:
        place, _, end = name.rpartition(".")
        if place in tops:
            return f"{tops[place]}.{end}"
        _, _, layer, part = place.split(".", 3)
        return f"blk.{layer}.{parts[part]}.{end}"

    packed = {
        named(name): (tuple(reversed(value.shape)), array("f", value.ravel().tolist()))
        for name, value in tensors.items()
    }
    sizes = {"context_length": 256, "embedding_length": 48, "block_count": 4, "attention.head_count": 4}
    sizes |= {"feed_forward_length": 80, "pooling_type": 1, "rope.freq_base": 1000.0, "attention.causal": False}
    metadata = {f"nomic-bert.{key}": value for key, value in sizes.items()}
    metadata |= {"general.architecture": "nomic-bert", "nomic-bert.attention.layer_norm_epsilon": 1e-12}
    gguf = write_gguf(tmp_path / "nomic.gguf", metadata, packed)
    assert _rust.model_task(gguf) == "embed"
    texts = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 17, 67)]
    expected = _rust.EncoderModel.load(tmp_path / "folder", threads=2).compute(texts)
    assert _rust.EncoderModel.load(gguf, threads=2).compute(texts) == expected
    own = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    config = {
        own.get(name, name): value for name, value in config.items() if name not in {"rope_parameters", "hidden_act"}
    }
    config |= {"rotary_emb_base": 1000, "activation_function": "swiglu", "prenorm": False, "use_flash_attn": True}
    write_json(tmp_path / "folder" / "config.json", config)
    assert _rust.EncoderModel.load(tmp_path / "folder", threads=2).compute(texts) == expected
    write_json(tmp_path / "folder" / "config.json", config | {"prenorm": True})
    with pytest.raises(_rust.ModelFileError, match="'prenorm' is true, which is not implemented"):
        _rust.EncoderModel.load(tmp_path / "folder", threads=2)
