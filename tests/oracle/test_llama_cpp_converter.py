"""Files of llama.cpp's own converter: transformers' numbers, the tensors of `gguf`, the tokens of llama.cpp's server.

The GGUF files of the other tests are written by them, under llama.cpp's names: what they misread, the engine may too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import sparse_models
from support.classic_models import WITH_ALIBI
from support.converted_models import FAMILIES, NUM_MARKERS, VOCABULARY, random_family
from support.llama_cpp import LlamaCpp, convert, llama_cpp, tensors_of
from support.logit_sequences import Sequences
from support.tiny_model import CONTROL_TOKENS, metadata

from pyagent import _rust
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer

pytestmark = pytest.mark.converter

TOKENS = [(7 * place + place * place) % (VOCABULARY - 3) + 3 for place in range(120)]
HAVE_GELU = {"starcoder2", "phi", "gpt_neox", "falcon", "falcon, new", "bloom", "gpt2", "gpt_bigcode"}
PROMPTS = [TOKENS[:20], TOKENS[20:90]]
NUM_TOKENS = 32
TEXTS = [
    "The lighthouse of 1234567 men's boats, it's LIT.",
    "two  spaces\n\n\n\tand tabs \n",
    "ÄÖÜ naïve café, 東京 и Москва — 🙂 x²",
    "I'LL don't we'Re 12 345 $%^ foo_bar fooBar <|user|> said",
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """llama.cpp's server for all tests here."""
    with llama_cpp(tmp_path_factory.mktemp("llama.cpp") / "log") as server:
        yield server


def log_probabilities(logits: Any) -> Any:
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def expect_continued(
    path: Path, prompts: list[list[int]], answers: list[dict[str, Any]], banned: list[int], tolerance: float
) -> None:
    """At each place the most likely tokens have llama.cpp's probabilities, and the best is its, near ties apart."""
    import numpy as np

    sequences = Sequences(path)
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = answer["tokens"]
        assert len(tokens) == NUM_TOKENS
        logits = sequences.logits((number, prompt + tokens[:-1]))[len(prompt) - 1 :]
        for row, token, likely in zip(log_probabilities(logits), tokens, answer["likely"], strict=True):
            expected = np.array([probability for _, probability in likely])
            assert np.abs(row[[one for one, _ in likely]] - expected).max() < tolerance
            row[banned] = -np.inf
            assert row[token] > row.max() - 2 * tolerance


def expect_same_tensors(path: Path) -> None:
    """Each tensor, as `gguf` reads it, bit for bit."""
    import numpy as np

    file = _rust.TensorFile(path)
    for name, values in tensors_of(path):
        found = file.find(name)
        assert found is not None
        assert tuple(reversed(found[0])) == values.shape
        ours = np.empty(values.size, np.float32)
        file.read_floats(name, 0, memoryview(ours).cast("B"))
        assert np.array_equal(ours, values.astype(np.float32).ravel()), name


def unsaid(folder: Path) -> list[int]:
    """Tokens that llama.cpp's server does not tell: markers, rows without a token, and parts of characters."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    says = [token < len(tokenizer) and "\ufffd" not in tokenizer.decode([token]) for token in range(VOCABULARY)]
    return [token for token in range(VOCABULARY) if not says[token] or token < NUM_MARKERS]


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_llama_cpps_converter_are_read_as_it_means_them(name: str, peer: LlamaCpp, tmp_path: Path) -> None:
    """In F32, F16 and Q8_0: transformers' logits, `gguf`'s tensors, and llama.cpp's greedy tokens and probabilities."""
    import numpy as np
    import torch

    family = FAMILIES[name]
    model = random_family(name, tmp_path / "model")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    banned = unsaid(tmp_path / "model")
    scale = np.linalg.norm(expected, axis=1)
    # llama.cpp has GELU in a table of 16 bits, in its tanh form.
    exact = 0.05 if "gemma" in name else 3e-3 if name in HAVE_GELU else 2e-4
    for file_type, most, tolerance in (("f32", 1e-4, exact), ("f16", 0.02, 0.1), ("q8_0", 0.4, None)):
        path = convert(tmp_path / "model", tmp_path / f"{file_type}.gguf", file_type, family.words, family.published)
        expect_same_tensors(path)
        errors = np.linalg.norm(Sequences(path).logits((0, TOKENS)) - expected, axis=1) / scale
        # Rounded weights send a token to another expert now and then: most positions count, in float32 all.
        bound = 1.0 if file_type == "q8_0" and family.has_experts else most
        assert (errors.max() if file_type == "f32" else np.median(errors)) < bound, file_type
        if tolerance is None or family.peer_differs or (file_type != "f32" and family.has_experts):
            continue
        texts = TEXTS if file_type == "f32" else []
        told = peer.ask(path, prompts=PROMPTS, num_tokens=NUM_TOKENS, banned=banned, texts=texts)
        expect_continued(path, PROMPTS, told["answers"], banned, tolerance)
        tokenizer = ModelTokenizer.load(path, vocab_size=VOCABULARY)
        assert [tokenizer.encode_text(text) for text in texts] == told["tokens"]


UNCONVERTED = {
    "starcoder2, as CodeShell": 2e-3,
    "qwen2, as the first Qwen": 2e-4,
    "llama, as Baichuan": 2e-4,
    **dict.fromkeys(WITH_ALIBI, 2e-4),
}
"""Families that llama.cpp's converter takes from folders alone that need code of their own, or not at all."""


@pytest.mark.parametrize("name", UNCONVERTED)
def test_files_of_families_that_llama_cpp_alone_has_give_its_tokens(
    name: str, peer: LlamaCpp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tensors under its names, with the weights of their like: its greedy tokens and probabilities, in F32."""
    shape, keys = WITH_ALIBI.get(name) or (sparse_models.CONFIGS[name], sparse_models.KEYS[name])
    described = metadata(tokenizer__ggml__token_type=None)  # it takes no whole numbers without a sign there
    words = {key: value for key, value in described.items() if key.startswith("tokenizer.ggml.")}
    tokenizer = build_tokenizer(words, "m")
    num_tokens = tokenizer.get_vocab_size()
    layers = {"num_hidden_layers": 32} if name == "llama, as Baichuan" else {}  # it knows no others
    monkeypatch.setitem(sparse_models.CONFIGS, name, shape | layers | {"vocab_size": num_tokens})
    monkeypatch.setitem(sparse_models.KEYS, name, keys)
    sparse_models.random_model(name, tmp_path / "folder")
    stored = sparse_models.tensors_of(tmp_path / "folder")
    path = sparse_models.write_as_gguf(tmp_path / "m.gguf", name, stored, tokenizer=words)
    is_said = [
        token >= len(CONTROL_TOKENS) and "\ufffd" not in tokenizer.decode([token]) for token in range(num_tokens)
    ]
    banned = [token for token in range(num_tokens) if not is_said[token]]
    prompts = [[token % num_tokens for token in prompt] for prompt in PROMPTS]
    told = peer.ask(path, prompts=prompts, num_tokens=NUM_TOKENS, banned=banned, texts=[])
    expect_continued(path, prompts, told["answers"], banned, UNCONVERTED[name])
