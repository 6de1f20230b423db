"""GGUF files that embed, rank or classify: the numbers and tokens of the folders they were made of, and refusals."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.encoders import native, on
from support.gguf_writer import write_gguf
from support.tiny_encoder import PIECES, SHAPE, gguf_name, tensors_of, write_classifier, write_safetensors
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.messages import RankRequest
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens

LABELS = ["no", "yes", "perhaps"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABC0123456789.,"
UNIGRAMS = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -2.0), ("▁", -3.0), ("cat", -2.5)]
UNIGRAMS += [(letter, -6.0) for letter in LETTERS]
TEXTS = ["the cat", "  the\n cat  sat", "A,b.C", "é </s> 9"]


def written(path: Path, kind: str, sizes: dict[str, Any], tensors: dict[str, Any], **more: Any) -> Path:
    """Write a file; `sizes` are keys of its architecture, dots as double underscores in `more`."""
    metadata = {f"{kind}.{key}": value for key, value in sizes.items()} | {"general.architecture": kind}
    metadata |= {key.replace("__", "."): value for key, value in more.items() if value is not None}
    packed = {name: (tuple(reversed(shape)), array("f", values)) for name, (shape, values) in tensors.items()}
    return write_gguf(path, metadata, packed)


BERT: dict[str, Any] = {
    "context_length": SHAPE["max_position_embeddings"],
    "embedding_length": SHAPE["hidden_size"],
    "block_count": SHAPE["num_hidden_layers"],
    "attention.head_count": SHAPE["num_attention_heads"],
    "feed_forward_length": SHAPE["intermediate_size"],
    "attention.layer_norm_epsilon": 1e-5,
    "attention.causal": False,
}
UNIGRAM_KEYS: dict[str, Any] = {
    "tokenizer__ggml__model": "t5",
    "tokenizer__ggml__tokens": [piece for piece, _ in UNIGRAMS],
    "tokenizer__ggml__scores": [score for _, score in UNIGRAMS],
    "tokenizer__ggml__token_type": [3, 3, 3, 2] + [1] * (len(UNIGRAMS) - 4),
    "tokenizer__ggml__bos_token_id": 0,
    "tokenizer__ggml__eos_token_id": 2,
    "tokenizer__ggml__seperator_token_id": 2,
    "tokenizer__ggml__add_bos_token": True,
    "tokenizer__ggml__add_eos_token": True,
    "tokenizer__ggml__add_sep_token": True,
}


def roberta(folder: Path, path: Path, labels: Sequence[str], *, without: str = "", **changes: Any) -> tuple[Path, Path]:
    """Write a model with labels as a folder, and as llama.cpp's converter names it; positions begin after the pad."""
    shape = {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    write_classifier(folder, labels, **shape)
    config = SHAPE | shape
    tensors = tensors_of(config, num_labels=len(labels))
    table = "roberta.embeddings.position_embeddings.weight"
    (rows, cols), values = tensors[table]
    tensors[table] = ([rows - 2, cols], values[2 * cols :])
    named = {_head_name(name) or gguf_name(name.removeprefix("roberta.")): tensor for name, tensor in tensors.items()}
    sizes = BERT | {"context_length": SHAPE["max_position_embeddings"] - 2}
    if len(labels) > 1:
        sizes["classifier.output_labels"] = list(labels)
    kept = {name: tensor for name, tensor in named.items() if not without or not name.startswith(without)}
    return folder, written(path, "bert", sizes, kept, **(UNIGRAM_KEYS | changes))


def _head_name(name: str) -> str | None:
    place, _, end = name.rpartition(".")
    head = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}.get(place)
    return f"{head}.{end}" if head else None


@pytest.mark.parametrize("labels", [["relevance"], LABELS])
def test_a_head_gives_the_folders_bits(labels: list[str], tmp_path: Path) -> None:
    """XLM-RoBERTa with one label ranks, with several classifies; labels are named by the file, or by their numbers."""
    folder, path = roberta(tmp_path / "folder", tmp_path / "m.gguf", labels)
    assert _rust.model_task(path) == _rust.model_task(folder) == ("rank" if len(labels) == 1 else "classify")
    model = _rust.EncoderModel.load(path, threads=2)
    assert model.info()["labels"] == (["LABEL_0"] if len(labels) == 1 else labels)
    texts = [[0, *((7 * place + length) % 40 + 4 for place in range(length)), 2] for length in (1, 9, 40)]
    assert model.compute(texts) == _rust.EncoderModel.load(folder, threads=2).compute(texts)


def test_a_file_ranks_documents(tmp_path: Path) -> None:
    """A query and documents become pairs with two separators between, by the file's own tokenizer."""
    _, path = roberta(tmp_path / "folder", tmp_path / "m.gguf", ["relevance"])
    documents = ["the cat", "a. b", "cat the cat"]
    asked = RankRequest(model="", pairs=[("the", document) for document in documents])
    found = on(lambda: native(path), lambda made: made.rank(asked)).scores
    tokens = TextTokens(path, 46, SHAPE["vocab_size"]).encode([("the", document) for document in documents])
    plain = [[token & ~(1 << 31) for token in pair] for pair in tokens]
    assert plain[0] == [0, 4, 2, 2, 4, 5, 6, 2]
    packed = array("f", _rust.EncoderModel.load(path, threads=1).compute(tokens)).tolist()
    assert found == packed
    assert len(set(found)) == 3


def test_unigrams_are_cut_as_the_models_own_tokenizer_does(tmp_path: Path) -> None:
    """Repeated spaces count once, unknown letters are one token, special tokens in a text are found."""
    _, path = roberta(tmp_path / "folder", tmp_path / "m.gguf", ["relevance"])
    own = Tokenizer(models.Unigram(UNIGRAMS, 3))
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")]
    )
    own.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    adding: Any = own
    adding.add_special_tokens(["<s>", "</s>"])
    assert TextTokens(path, 46, SHAPE["vocab_size"]).encode(TEXTS) == [own.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize(
    ("without", "changes", "expected"),
    [
        ("cls.weight", {}, "without the layer before them: llama.cpp's converter leaves out BERT's pooler"),
        ("cls.output", {"bert__pooling_type": 4}, "is 4 .rank., but the file has no tensor 'cls.output.weight'"),
        ("", {"bert__classifier__output_labels": ["a", "b"]}, "names 2 labels, but tensor 'cls.output.weight' has 3"),
        ("", {"bert__classifier__output_labels": 7}, "classifier.output_labels"),
        ("", {"bert__pooling_type": 9}, "pooling_type' is 9, which is not implemented"),
        ("", {"tokenizer__ggml__scores": [0.5]}, "'tokenizer.ggml.scores' has 1 numbers"),
        ("", {"tokenizer__ggml__tokens": None}, "the file has no 'tokenizer.ggml.tokens'"),
        (
            "",
            {"tokenizer__ggml__tokens": ["a" * 5_000] * len(UNIGRAMS)},
            "a token of 5000 characters; expected at most",
        ),
        ("", {"tokenizer__ggml__token_type": [1] * len(UNIGRAMS)}, "no token stands for what is unknown"),
        (
            "",
            {"tokenizer__ggml__eos_token_id": 4_000, "tokenizer__ggml__seperator_token_id": None},
            "says that a token 'eos' is added to each text, and does not name one",
        ),
    ],
)
def test_what_a_file_lacks_is_refused(without: str, changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """In one line that names the tensor or key."""
    _, path = roberta(tmp_path / "folder", tmp_path / "m.gguf", LABELS, without=without, **changes)
    with pytest.raises((ModelError, _rust.ModelFileError), match=expected):
        TextTokens(path, 46, _rust.EncoderModel.load(path, threads=1).info()["vocab_size"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"add_eos_token": None}, [0, 4, 2]),
        ({"eos_token_id": None}, [0, 4, 2]),
        ({"seperator_token_id": None, "add_sep_token": None}, [0, 4, 2]),
        ({"add_bos_token": False}, [4, 2]),
        ({"add_space_prefix": False}, [0, 26, 14, 11, 2]),
    ],
)
def test_what_stands_around_a_text_is_what_the_file_says(
    changes: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    """Where it says nothing, as in llama.cpp: SentencePiece's unigrams end, and an end may be told as a separator."""
    keys = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
    _, path = roberta(tmp_path / "folder", tmp_path / "m.gguf", ["relevance"], **keys)
    assert TextTokens(path, 46, SHAPE["vocab_size"]).encode(["the"]) == [expected]


def test_a_damaged_map_of_letters_is_the_files_fault(tmp_path: Path) -> None:
    """Its library ends in a panic, which reaches nobody as such."""
    damaged = [16, 0, 0, 0, *range(3, 23)]
    keys = UNIGRAM_KEYS | {"tokenizer__ggml__precompiled_charsmap": damaged}
    _, path = roberta(tmp_path / "folder", tmp_path / "m.gguf", ["relevance"], **keys)
    with pytest.raises(ModelError, match="its tokenizer cannot be run"):
        TextTokens(path, 46, SHAPE["vocab_size"]).encode(["the ﬁne cat"])


def test_capital_letters_of_a_cased_vocabulary_are_seen(tmp_path: Path) -> None:
    """A vocabulary that has any is of a model that sees them; the file may say otherwise."""
    pieces = [piece if piece.startswith("[") else piece.removeprefix("##") for piece in PIECES]
    pieces = [
        piece if piece.startswith("[") or PIECES[at].startswith("##") else f"▁{piece}"
        for at, piece in enumerate(pieces)
    ]
    pieces[-1] = "▁Cat"
    keys: dict[str, Any] = {"tokenizer__ggml__model": "bert", "tokenizer__ggml__tokens": pieces}
    tensors = {gguf_name(name): tensor for name, tensor in tensors_of(SHAPE).items()}
    path = written(tmp_path / "m.gguf", "bert", BERT, tensors, **keys)
    cat, unknown = len(PIECES) - 1, PIECES.index("[UNK]")
    assert TextTokens(path, 46, len(PIECES)).encode(["Cat THE"]) == [[2, cat, unknown, 3]]
    lowered = written(tmp_path / "l.gguf", "bert", BERT, tensors, **keys, tokenizer__ggml__normalizer__lowercase=True)
    assert TextTokens(lowered, 46, len(PIECES)).encode(["THE"]) == [[2, PIECES.index("the"), 3]]


@pytest.mark.parametrize(
    ("keys", "strips"), [({}, True), ({"strip_accents": False}, False), ({"lowercase": False}, False)]
)
def test_accents_are_taken_off_as_the_file_says(keys: dict[str, bool], strips: bool, tmp_path: Path) -> None:
    """Where it says nothing they go with capital letters, as BERT's own tokenizer does."""
    pieces = [f"▁{piece}" if piece.isalpha() else piece.removeprefix("##") for piece in PIECES]
    told: dict[str, Any] = {f"tokenizer__ggml__normalizer__{key}": value for key, value in keys.items()}
    told |= {"tokenizer__ggml__model": "bert", "tokenizer__ggml__tokens": pieces}
    tensors = {gguf_name(name): tensor for name, tensor in tensors_of(SHAPE).items()}
    path = written(tmp_path / "m.gguf", "bert", BERT, tensors, **told)
    expected = PIECES.index("the" if strips else "[UNK]")
    assert TextTokens(path, 46, len(PIECES)).encode(["thé"]) == [[2, expected, 3]]


MODERN: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "local_attention": 8,
    "norm_eps": 1e-5,
    "hidden_activation": "gelu",
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "global_attn_every_n_layers": 3,
    "classifier_pooling": "mean",
    "architectures": ["ModernBertForSequenceClassification"],
    "id2label": {"0": "relevance"},
}
MODERN_PARTS = {
    "attn.Wqkv": ("attn_qkv", 72, 24),
    "attn.Wo": ("attn_output", 24, 24),
    "attn_norm": ("attn_norm", 24, 0),
    "mlp.Wi": ("ffn_up", 80, 24),
    "mlp.Wo": ("ffn_down", 24, 40),
    "mlp_norm": ("ffn_norm", 24, 0),
}


def modern_tensors() -> dict[str, tuple[str, list[int]]]:
    """Names of transformers to those of GGUF, and dimensions."""
    found = {"model.embeddings.tok_embeddings": ("token_embd", [50, 24]), "classifier": ("cls.output", [1, 24])}
    found |= {"model.embeddings.norm": ("token_embd_norm", [24]), "model.final_norm": ("output_norm", [24])}
    found |= {"head.dense": ("cls", [24, 24]), "head.norm": ("cls.norm", [24])}
    for layer in range(4):
        for part, (name, rows, cols) in MODERN_PARTS.items():
            if layer or part != "attn_norm":
                found[f"model.layers.{layer}.{part}"] = (f"blk.{layer}.{name}", [rows, cols] if cols else [rows])
    return found


def written_modern(place: Path, *, has_biases: bool) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Write a folder with a head; return it, and the keys and tensors of its GGUF file."""
    draw, folder, gguf = random.Random(5), dict[str, Any](), dict[str, Any]()
    for name, (other, dims) in modern_tensors().items():
        values = [draw.gauss(1.0 if len(dims) == 1 else 0.0, 0.2) for _ in range(math.prod(dims))]
        folder[f"{name}.weight"] = gguf[f"{other}.weight"] = (dims, values)
        if (has_biases and not name.endswith(("norm", "embeddings"))) or name == "classifier":
            bias = [draw.gauss(0.0, 0.2) for _ in range(dims[0])]
            folder[f"{name}.bias"] = gguf[f"{other}.bias"] = ([dims[0]], bias)
    place.mkdir()
    told = dict.fromkeys(("attention_bias", "mlp_bias", "classifier_bias"), has_biases)
    write_safetensors(place, MODERN | told, folder)
    sizes = {**BERT, "block_count": 4, "context_length": 64, "attention.sliding_window": 8, "rope.freq_base": 160_000.0}
    return place, sizes, gguf


MODERN_TEXTS = [[(13 * place + length) % 46 + 3 for place in range(length)] for length in (1, 20, 60)]


def computed(path: Path) -> bytes:
    return _rust.EncoderModel.load(path, threads=2).compute(MODERN_TEXTS)


@pytest.mark.parametrize("has_biases", [False, True])
def test_modernbert_gives_the_folders_bits(has_biases: bool, tmp_path: Path) -> None:
    """Gates and queries that lie in one matrix, layers that see their neighbours alone, and its head over the mean."""
    folder, sizes, tensors = written_modern(tmp_path / "m", has_biases=has_biases)
    path = written(tmp_path / "m.gguf", "modern-bert", sizes, tensors)
    expected = computed(folder)
    assert _rust.model_task(path) == "rank"
    assert computed(path) == expected
    seen = written(tmp_path / "n.gguf", "modern-bert", sizes | {"attention.sliding_window_pattern": 2}, tensors)
    assert computed(seen) != expected
    bare = {name: tensor for name, tensor in tensors.items() if name != "cls.norm.weight"}
    with pytest.raises(_rust.ModelFileError, match="without the layer before them"):
        computed(written(tmp_path / "o.gguf", "modern-bert", sizes, bare))


def test_biases_of_modernberts_norms_are_added(tmp_path: Path) -> None:
    """Those of all norms, where the last one has any; zeros change nothing."""
    _, sizes, tensors = written_modern(tmp_path / "m", has_biases=False)
    plain = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}

    def with_biases(value: float) -> dict[str, Any]:
        norms = [name.removesuffix(".weight") for name in plain if name.endswith("norm.weight")]
        return plain | {f"{name}.bias": ([24], [value] * 24) for name in norms}

    made = [plain, with_biases(0.0), with_biases(0.2)]
    paths = [written(tmp_path / f"{at}.gguf", "modern-bert", sizes, each) for at, each in enumerate(made)]
    none, zeros, some = map(computed, paths)
    assert none == zeros != some


@pytest.mark.parametrize("name", ["cls.norm.bias", "blk.3.attn_q_norm.weight", "blk.4.ffn_norm.weight"])
def test_tensors_of_layers_and_heads_that_nothing_reads_are_refused(name: str, tmp_path: Path) -> None:
    """Without them the numbers would be others; of a head that a model without labels has nothing is read."""
    _, sizes, tensors = written_modern(tmp_path / "m", has_biases=False)
    more = {name: ([24], [0.5] * 24)}
    path = written(tmp_path / "m.gguf", "modern-bert", sizes, tensors | more)
    with pytest.raises(_rust.ModelFileError, match=f"there is a tensor '{name}', which is not implemented"):
        computed(path)
    bare = {other: tensor for other, tensor in (tensors | more).items() if not other.startswith("cls.output")}
    if name.startswith("cls."):
        assert computed(written(tmp_path / "n.gguf", "modern-bert", sizes, bare))


def test_a_file_has_no_more_labels_than_a_client_reads(tmp_path: Path) -> None:
    """The matrix of labels bounds what each text is answered with."""
    _, sizes, tensors = written_modern(tmp_path / "m", has_biases=False)
    rows = (1 << 16) + 1
    many = {"cls.output.weight": ([rows, 24], [0.0] * 24 * rows), "cls.output.bias": ([rows], [0.0] * rows)}
    path = written(tmp_path / "m.gguf", "modern-bert", sizes, tensors | many)
    with pytest.raises(_rust.ModelFileError, match=f"has {rows} rows, one for each label; expected at most {1 << 16}"):
        computed(path)


def test_texts_are_no_longer_than_memory_allows(tmp_path: Path) -> None:
    """Where positions are computed, no table bounds what a file says."""
    _, sizes, tensors = written_modern(tmp_path / "m", has_biases=False)
    path = written(tmp_path / "m.gguf", "modern-bert", sizes | {"context_length": 1 << 20}, tensors)
    about = _rust.describe_encoder(path)
    assert about is not None
    assert about["max_tokens"] == 8_192
