"""Encoder-decoders of T5's family against transformers on the same random weights, from both kinds of files."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.encoder_decoders import PromptRunner, t5_metadata
from support.gguf_writer import write_gguf
from support.hybrid_reference import expect_near

pytestmark = pytest.mark.oracle

SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 40,
    "decoder_start_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "t5": {"feed_forward_proj": "relu"},
    "t5-v1.1": {"feed_forward_proj": "gated-gelu"},
    "mt5": {"feed_forward_proj": "gated-gelu"},
    "umt5": {"feed_forward_proj": "gated-gelu"},
}
"""The first has one matrix for tokens and logits, those of gates have two; the last has distances in each layer."""
NUM_POSITIONS = 200
_HALVES = {"encoder": "enc", "decoder": "dec"}
_PARTS = {
    "0.SelfAttention.relative_attention_bias": "attn_rel_b",
    "0.layer_norm": "attn_norm",
    "DenseReluDense.wi": "ffn_up",
    "DenseReluDense.wi_0": "ffn_gate",
    "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
    **{f"0.SelfAttention.{part}": f"attn_{part}" for part in "qkvo"},
    **{f"1.EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"},
}


def reference_model(family: str) -> Any:
    """Return a model of transformers with random weights, large enough that logits differ."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    torch.manual_seed(7)
    is_tied = family == "t5"
    config = AutoConfig.for_model(
        family.split("-", maxsplit=1)[0], **SHAPE, **FAMILIES[family], tie_word_embeddings=is_tied
    )
    config.tie_word_embeddings = is_tied  # transformers ties them in memory all the same
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32).eval()
    if not is_tied:
        model.encoder.embed_tokens = model.decoder.embed_tokens = model.shared
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_table = "relative_attention_bias" in name
            parameter.copy_(torch.randn_like(parameter) * (0.7 if is_table else 0.12) + (1.0 if "norm" in name else 0))
    return model


def prompts_and_answers(reference: Any) -> tuple[list[list[int]], list[list[int]], Any]:
    """Return two prompts farther than the table of distances reaches, two answers, and transformers' logits of each."""
    import torch

    draw = random.Random(3)
    prompts = [[draw.randrange(3, 250) for _ in range(count)] for count in (150, 61)]
    answers = [[0, *(draw.randrange(3, 250) for _ in range(NUM_POSITIONS - 1))] for _ in prompts]
    with torch.no_grad():
        pairs = zip(prompts, answers, strict=True)
        logits = [reference(torch.tensor([p]), decoder_input_ids=torch.tensor([a])).logits[0].numpy() for p, a in pairs]
    return prompts, answers, logits


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_agree_with_transformers_at_200_positions(family: str, tmp_path: Path) -> None:
    """Whole, in chunks and token by token beside another prompt: the same bits, within 1e-4 of transformers."""
    import numpy as np

    reference = reference_model(family)
    reference.save_pretrained(tmp_path)
    prompts, answers, expected = prompts_and_answers(reference)
    runner = PromptRunner(tmp_path)
    assert runner.start == 0
    whole: list[Any] = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert runner.begin(number, prompt, answer) == 0
        whole.append(runner.step((number, [*prompt, *answer])))
        expect_near(whole[number], expected[number])
    runner.pool.clear_index()
    draw, rows = random.Random(5), [[], []]
    logs = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    for number in (2, 3):
        runner.begin(number, prompts[number - 2], answers[number - 2])
    places = [0, 0]
    while places[0] < len(logs[0]) or places[1] < len(logs[1]):
        segments: list[tuple[int, list[int]]] = []
        for number in (0, 1):
            count = draw.choice([1, 7, 16, 50]) if places[number] < len(prompts[number]) + 60 else 1
            if chunk := logs[number][places[number] : places[number] + count]:
                segments.append((number + 2, chunk))
        logits, first = runner.step(*segments), 0
        for number, chunk in ((number - 2, chunk) for number, chunk in segments):
            end = places[number] + len(chunk)
            num_rows = max(0, min(len(chunk), end - len(prompts[number])))
            rows[number].append(logits[first : first + num_rows])
            first, places[number] = first + num_rows, end
    for number in (0, 1):
        assert (np.concatenate(rows[number]) == whole[number]).all(), "the same bits"


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_files_under_the_names_of_llama_cpp_give_the_same_bits(family: str, tmp_path: Path) -> None:
    """The same weights under llama.cpp's names, whose keys tell no farthest distance: T5's own."""
    reference = reference_model(family)
    reference.config.relative_attention_max_distance = 128
    reference.save_pretrained(tmp_path / "folder")
    path = write_as_gguf(tmp_path / "model.gguf", reference)
    prompts, answers, _ = prompts_and_answers(reference)
    logits: list[Any] = []
    for runner in (PromptRunner(tmp_path / "folder"), PromptRunner(path)):
        runner.begin(1, prompts[0], answers[0])
        logits.append(runner.step((1, [*prompts[0], *answers[0]])))
    assert (logits[0] == logits[1]).all()


def write_as_gguf(path: Path, model: Any) -> Path:
    """Write a model of transformers under llama.cpp's names and with its keys; return `path`."""
    own = {**SHAPE, "relative_attention_max_distance": 128}
    entries = t5_metadata(**{"attention.relative_buckets_count": own["relative_attention_num_buckets"]})
    tensors: dict[str, tuple[tuple[int, ...], array[float]]] = {}
    is_tied = model.lm_head.weight is model.shared.weight
    for name, parameter in model.state_dict().items():
        if (named := gguf_name(name)) and not (named == "output" and is_tied):
            dims = tuple(reversed(parameter.shape))
            tensors[f"{named}.weight"] = (dims, array("f", parameter.contiguous().numpy().tobytes()))
    return write_gguf(path, entries, tensors)


def gguf_name(name: str) -> str:
    """Return what llama.cpp calls a tensor of transformers, without its end; nothing for a copy of the embedding."""
    name = name.removesuffix(".weight")
    if name in {"shared", "lm_head"}:
        return {"shared": "token_embd", "lm_head": "output"}[name]
    half, _, rest = name.partition(".")
    if rest == "embed_tokens":
        return ""
    if rest == "final_layer_norm":
        return f"{_HALVES[half]}.output_norm"
    _, layer, _, part = rest.split(".", 3)
    if part == "1.layer_norm" and half == "decoder":
        return f"dec.blk.{layer}.cross_attn_norm"
    ending = part.split(".", 1)[1]
    found = _PARTS.get(part) or _PARTS.get(ending) or "ffn_norm"
    return f"{_HALVES[half]}.blk.{layer}.{found}"


def test_texts_of_a_spiece_model_are_cut_as_by_sentencepiece(tmp_path: Path) -> None:
    """A vocabulary of unigrams with T5's normalization, as mT5's folders have it without a tokenizer.json."""
    import sentencepiece

    from pyagent.infrastructure.engine.tokens import ModelTokenizer

    words = [
        "Übersetze",
        "translate",
        "English",
        "German",
        "hello",
        "world",
        "naïve",
        "ﬁne",
        "１２",
        "３",
        "to:",
        "Größe",
    ]
    draw = random.Random(2)
    texts = [" ".join(draw.choices(words, k=draw.randrange(1, 9))) for _ in range(300)]
    with (tmp_path / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            vocab_size=40,
            model_type="unigram",
            normalization_rule_name="nmt_nfkc",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    reference = sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model"))
    (tmp_path / "config.json").write_text('{"model_type": "mt5", "is_encoder_decoder": true, "eos_token_id": 1}')
    tokenizer = ModelTokenizer.load(tmp_path, vocab_size=40)
    for text in [*texts[:50], "  two   spaces ", "ﬁne １２ naïve", "what 😀 is\tunknown\n", "Ｇｅｒｍａｎ"]:
        ids = tokenizer.encode_text(text)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == reference.decode(ids).replace(" ⁇ ", "<unk>") or 2 in ids
    assert tokenizer.text_end_id == 1
