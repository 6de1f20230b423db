"""Files of llama.cpp's own converter that embed or rank: transformers' numbers and tokens, and llama.cpp's server's."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from oracle.test_encoders import write_word_ranker
from oracle.test_jina_encoders import expected as jina_vector
from oracle.test_nomic_moe import expected as nomic_vector
from support import jina_bert, nomic_moe
from support.converted_encoders import ENCODERS, RANKERS, VOCABULARY, Encoder, dense_steps, random_encoder, write_words
from support.llama_cpp import LlamaCpp, convert, llama_cpp

from pyagent import _rust
from pyagent.infrastructure.engine.encoders.pair_template import PairTemplate
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens

pytestmark = pytest.mark.converter

TEXTS = [
    "The keeper of the lighthouse counts boats at night.",
    "a",
    "Ångström's naïve café cost 1,234.50 — wasn't it?\n\n  Two  spaces, 東京.",
    "Ships " * 45,
]
DOCUMENTS = ["The tower was built of white stone.", "Nobody came.", "It burns oil, and the oil is dear; " * 6]
GELU_TABLE = 0.004
"""llama.cpp has GELU in a table of 16 bits, of tanh's form."""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """llama.cpp's server for all tests here."""
    with llama_cpp(tmp_path_factory.mktemp("llama.cpp") / "log", "llama_embed.py") as server:
        yield server


def rows_of(packed: bytes, width: int) -> Any:
    import numpy as np

    return np.frombuffer(array("f", packed), dtype=np.float32).reshape(-1, width)


def own_tokens(folder: Path, texts: Sequence[Any]) -> list[list[int]]:
    """The tokens of the model's own tokenizer."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    if (folder / "tokenizer.json").exists():
        inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return [one.ids for one in inner.encode_batch(list(texts))]
    return [AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for text in texts]


def plain(tokens: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[token & ~(1 << 31) for token in text] for text in tokens]


def converted(about: Encoder, folder: Path, file_type: str) -> Path:
    options = {"sentence_transformers_dense_modules": True} if about.dense else {}
    return convert(folder, folder / f"{file_type}.gguf", file_type, about.words, about.published, **options)


def loaded(path: Path) -> tuple[TextTokens, _rust.EncoderModel]:
    model = _rust.EncoderModel.load(path, threads=2)
    shape = model.info()
    return TextTokens(path, shape["max_tokens"], shape["vocab_size"]), model


def expected_vectors(about: Encoder, folder: Path, model: Any, tokens: list[list[int]]) -> Any:
    import torch

    with torch.inference_mode():
        states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in tokens]
        pools = {"mean": lambda one: one.mean(0), "cls": lambda one: one[0], "lasttoken": lambda one: one[-1]}
        rows = dense_steps(about, folder, torch.stack([pools[about.pooling](one) for one in states]))
        return torch.nn.functional.normalize(rows, dim=1).numpy()


@pytest.mark.parametrize("name", ENCODERS)
def test_files_that_embed_give_transformers_vectors(name: str, peer: LlamaCpp, tmp_path: Path) -> None:
    """In F32 within 1e-5, in F16 and Q8_0 near; the same tokens, and in F32 llama.cpp's vectors."""
    import numpy as np

    about = ENCODERS[name]
    model = random_encoder(about, tmp_path)
    tokens = own_tokens(tmp_path, TEXTS)
    expected = expected_vectors(about, tmp_path, model, tokens)
    assert np.abs(np.triu(expected @ expected.T, 1)).max() < 0.999  # texts differ
    for file_type, most in (("f32", 1e-5), ("f16", 0.01), ("q8_0", 0.1)):
        path = converted(about, tmp_path, file_type)
        assert _rust.model_task(path) == "embed"
        texts, ours = loaded(path)
        assert texts.encode(TEXTS) == tokens
        found = rows_of(ours.compute(tokens), expected.shape[1])
        assert np.abs(found - expected).max() < most, file_type
        if file_type == "f32" and not about.peer_differs:
            told = peer.ask(path, texts=TEXTS, documents=[])
            assert np.abs(np.array(told["vectors"]) - expected).max() < GELU_TABLE


NO_DEFAULTS = dict.fromkeys(
    (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "layer_norm_eps",
        "max_position_embeddings",
        "rope_parameters",
        "rope_theta",
        "hidden_act",
        "head_dim",
    )
)
"""What transformers says of Nomic's models in words that their published files have not."""


def write_described(name: str, folder: Path) -> tuple[str, Any, Any]:
    """Write a model that transformers has not; return how its words are cut, a text's vector, and llama.cpp's."""
    import torch

    if name == "nomic_moe":
        nomic_moe.write_nomic_moe(folder, has_bias=False, vocab_size=VOCABULARY, n_positions=2048)
        raw = nomic_moe.tensors_of(has_bias=False, vocab_size=VOCABULARY)
        tensors = {name: torch.tensor(values).double().view(shape) for name, (shape, values) in raw.items()}
        return "unigrams", partial(nomic_vector, tensors), partial(nomic_vector, tensors)
    form = name.removeprefix("jina_v2_")
    shape = {"vocab_size": VOCABULARY, "max_position_embeddings": 300, "architectures": ["JinaBertModel"]}
    jina_bert.write_jina(folder, form, **shape)
    (folder / "sentence_bert_config.json").unlink()
    vector = partial(jina_vector, form, jina_bert.CONFIG | shape)
    return "pieces", vector, partial(vector, is_gate_first=True)


@pytest.mark.parametrize("name", ["jina_v2_text", "jina_v2_code", "nomic_moe"])
def test_files_of_described_models_give_their_vectors(name: str, peer: LlamaCpp, tmp_path: Path) -> None:
    """In F32 within 1e-5, the same tokens. llama.cpp's are near; it takes the other half for the code model's gate."""
    import numpy as np

    words, vector, peers = write_described(name, tmp_path / "m")
    write_words(words, tmp_path / "m")
    (tmp_path / "m" / "sentencepiece.bpe.model").unlink(missing_ok=True)  # the converter expects nomic's own size in it
    tokens = own_tokens(tmp_path / "m", TEXTS)
    cut = "jina-v2-en" if words == "pieces" else "default"
    path = convert(tmp_path / "m", tmp_path / "f32.gguf", "f32", cut, NO_DEFAULTS if name == "nomic_moe" else {})
    texts, ours = loaded(path)
    assert texts.encode(TEXTS) == tokens
    expected = np.stack([vector(text).numpy() for text in tokens])
    found = rows_of(ours.compute(tokens), expected.shape[1])
    assert np.abs(found - expected).max() < 1e-5
    alike = [number for number, text in enumerate(TEXTS) if "  " not in text]  # it keeps spaces of XLM-RoBERTa's words
    told = np.array(peer.ask(path, texts=[TEXTS[number] for number in alike], documents=[])["vectors"])
    assert np.abs(told - np.stack([peers(tokens[number]).numpy() for number in alike])).max() < GELU_TABLE


@pytest.mark.parametrize("name", RANKERS)
def test_files_with_labels_give_transformers_numbers(name: str, peer: LlamaCpp, tmp_path: Path) -> None:
    """One label ranks, several classify: in F32 within 1e-5; the same tokens of pairs, and llama.cpp's numbers."""
    import numpy as np
    import torch

    about = RANKERS[name]
    model = random_encoder(about, tmp_path)
    pairs = [(TEXTS[0], document) for document in DOCUMENTS]
    tokens = own_tokens(tmp_path, pairs)
    with torch.inference_mode():
        logits = torch.stack([model(torch.tensor([ids])).logits[0] for ids in tokens])
    path = converted(about, tmp_path, "f32")
    ranks = about.num_labels == 1
    assert _rust.model_task(path) == ("rank" if ranks else "classify")
    texts, ours = loaded(path)
    assert plain(texts.encode(pairs)) == tokens
    expected = torch.sigmoid(logits) if ranks else torch.softmax(logits, dim=1)
    found = rows_of(ours.compute(texts.encode(pairs)), about.num_labels or 0)
    assert np.abs(found - expected.numpy()).max() < 1e-5
    assert logits.std(dim=0).min() > 1e-2
    if ranks:
        told = peer.ask(path, texts=[TEXTS[0]], documents=DOCUMENTS)
        assert np.abs(np.array(told["ranks"]) - logits[:, 0].numpy()).max() < 0.02
    else:
        assert ours.info()["labels"] == ["bad", "so so", "good"]


def test_a_ranker_of_bert_without_its_pooler_is_refused(tmp_path: Path) -> None:
    """The converter leaves the pooler out, and the numbers would be others."""
    about = Encoder("bert", dict(ENCODERS["bert"].shape) | {"num_labels": 1}, "pieces", num_labels=1)
    random_encoder(about, tmp_path)
    path = converted(about, tmp_path, "f32")
    assert _rust.model_task(path) == "rank"
    with pytest.raises(_rust.ModelFileError, match="without the layer before them"):
        _rust.EncoderModel.load(path, threads=1)


def test_a_ranker_by_words_gives_transformers_relevance(peer: LlamaCpp, tmp_path: Path) -> None:
    """Qwen3-Reranker: how much likelier "yes" is than "no", by the file's own template; llama.cpp's as well."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer

    folder = tmp_path / "tiny-qwen3-reranker"
    model = write_word_ranker(folder, merges=(("t", "h"), ("th", "e")))
    (folder / "modules.json").unlink()
    (folder / "README.md").write_text("# Qwen3-Reranker")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    path = convert(folder, tmp_path / "f32.gguf", "f32", "qwen2", {})
    assert _rust.model_task(path) == "rank"
    about = _rust.describe_encoder(path)
    assert about is not None
    shown = PairTemplate.of(path, about["vocab_size"])
    assert shown is not None
    pairs = [(TEXTS[0], document) for document in DOCUMENTS[:2]]
    tokens = TextTokens(path, about["max_tokens"], about["vocab_size"], shown).encode(pairs)
    theirs = AutoTokenizer.from_pretrained(folder)
    template = _rust.read_model_header(path)["metadata"]["tokenizer.chat_template.rerank"]
    written = str(template).replace("{query}", TEXTS[0]).replace("{document}", DOCUMENTS[0])
    assert tokens[0] == theirs(written, add_special_tokens=False)["input_ids"]
    found = rows_of(_rust.EncoderModel.load(path, threads=2).compute(tokens), 2)[:, 0]
    yes, no = (theirs.convert_tokens_to_ids(word) for word in ("yes", "no"))
    with torch.inference_mode():
        logits = torch.stack([model(torch.tensor([one])).logits[0, -1] for one in tokens])
    expected = torch.sigmoid(logits[:, yes] - logits[:, no]).numpy()
    assert np.abs(found - expected).max() < 1e-5
    told = peer.ask(path, texts=[TEXTS[0]], documents=DOCUMENTS[:2])
    assert np.abs(np.array(told["ranks"]) - expected).max() < 1e-3
