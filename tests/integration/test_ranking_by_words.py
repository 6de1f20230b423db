"""Decoders that rank by how likely they say one word and not another: what they are shown, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.reference_decoder import reference_logits, write_family
from support.tiny_model import vocabulary, write_tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pyagent import Engine, _rust
from pyagent.core.errors import ContextOverflowError, ModelError
from pyagent.infrastructure.engine.encoders.pair_template import PairTemplate
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens
from pyagent.infrastructure.engine.tokens import ModelTokenizer

LETTERS = [*map(chr, range(ord("a"), ord("z") + 1)), *"QD?.:<>|_-0123456789", "Ġ", "Ċ"]
CONTROL = ["<|im_start|>", "<|im_end|>"]
IDS = {piece: number for number, piece in enumerate([*LETTERS, *CONTROL, "yes", "no"])}
TEMPLATE = (
    "<|im_start|>"
    "{% for m in messages if m.role == 'system' %}{{ m.content }}: {% endfor %}"
    "{% for m in messages if m.role == 'query' %}Q: {{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role == 'document' %}D: {{ m.content }}{% endfor %}"
    "<|im_end|>"
)


def write_ranker(folder: Path, *, template: str = TEMPLATE, about: object = None, steps: Sequence[str] = ()) -> Any:
    """Write a tiny random decoder as sentence-transformers lays out one that ranks by its words; return its parts."""
    found = write_family(folder, "qwen3")
    inner = Tokenizer(models.BPE(vocab=IDS, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    adding: Any = inner  # the library leaves the type of this method open
    adding.add_special_tokens(list(CONTROL))
    inner.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "1_LogitScore").mkdir()
    words = {"true_token_id": IDS["yes"], "false_token_id": IDS["no"]}
    write(folder / "1_LogitScore" / "config.json", words if about is None else about)
    kinds = [("m.Transformer", ""), ("sentence_transformers.cross_encoder.modules.LogitScore", "1_LogitScore")]
    kinds += [(kind, "x") for kind in steps]
    write(folder / "modules.json", [{"type": kind, "path": path} for kind, path in kinds])
    return found


def write(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")


def encoded(text: str) -> list[int]:
    """Return the tokens of a text, letter by letter; what stands between bars is a control token."""
    pieces = text.replace(" ", "Ġ").replace("\n", "Ċ")
    ids: list[int] = []
    while pieces:
        control = next((name for name in CONTROL if pieces.startswith(name)), pieces[0])
        ids.append(IDS[control])
        pieces = pieces.removeprefix(control)
    return ids


def test_relevances_are_those_of_the_formulas(tmp_path: Path) -> None:
    """As shown by the template: the sigmoid of how much likelier `yes` is than `no`, the best document first."""
    config, tensors = write_ranker(tmp_path)
    documents = ["a cat sat.", "dogs", "<"]
    expected: list[float] = []
    for document in documents:
        shown = encoded(f"<|im_start|>Q: a cat?\nD: {document}<|im_end|>")
        logits = reference_logits(config, tensors, shown)[-1]
        expected.append(1 / (1 + math.exp(logits[IDS["no"]] - logits[IDS["yes"]])))
    with Engine(str(tmp_path)) as engine:
        found = dict(engine.rerank("a cat?", documents))
    assert [found[number] for number in range(3)] == [pytest.approx(one, abs=1e-5) for one in expected]
    assert max(expected) - min(expected) > 1e-3


def test_markers_stay_text_and_prompts_are_told(tmp_path: Path) -> None:
    """A document that writes a control token has written characters; a default prompt is the system's message."""
    write_ranker(tmp_path)
    prompts = {"prompts": {"web": "find"}, "default_prompt_name": "web"}
    write(tmp_path / "config_sentence_transformers.json", prompts)
    shown = PairTemplate.of(tmp_path, 96)
    assert shown is not None
    tokens, _ = shown.encode("q", "a<|im_end|>b", 100, truncates=False)
    letters = [IDS[letter] for letter in "<|im_end|>"]
    begun, ended = encoded("<|im_start|>find: Q: q\nD: a"), encoded("b<|im_end|>")
    assert tokens == [*begun, *letters, *ended]
    write(tmp_path / "config_sentence_transformers.json", prompts | {"default_prompt_name": "other"})
    with pytest.raises(ModelError, match="has no prompt 'other', which it names as its default"):
        PairTemplate.of(tmp_path, 96)


def test_long_documents_are_cut_at_their_end(tmp_path: Path) -> None:
    """What follows the document stays; a pair whose query is too long is refused, as is a long one otherwise."""
    write_ranker(tmp_path)
    tokens = TextTokens(tmp_path, 24, 96, PairTemplate.of(tmp_path, 96))
    [cut] = tokens.encode([("q", "abcdefghij" * 3)], truncates=True)
    whole = encoded("<|im_start|>Q: q\nD: abcdefghijabc<|im_end|>")
    assert cut[-1] == whole[-1]
    assert 20 < len(cut) <= 24
    assert cut[:-1] == encoded("<|im_start|>Q: q\nD: abcdefghijabcdefghij")[: len(cut) - 1]
    with pytest.raises(ContextOverflowError, match=r"pair 1 has 40 tokens, the model takes 24; .*set truncate"):
        tokens.encode([("q", "a"), ("q", "abcdefghij" * 3)])
    with pytest.raises(ContextOverflowError, match="its query alone fills that"):
        tokens.encode([("q" * 30, "a")], truncates=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"template": "{{ messages[0].content }}"}, "shows no messages of the roles query and document"),
        ({"template": "{{ raise_exception('no') }}"}, "shows no messages of the roles query and document"),
        ({"about": {"true_token_id": 96}}, "ranks by token 96, which is not in its vocabulary of 96"),
        ({"about": {"false_token_id": 3}}, "config.json lacks 'true_token_id'"),
        ({"about": {"true_token_id": -1}}, "'true_token_id' must be a whole number"),
        ({"steps": ["m.Dense"]}, "the step 'Dense' is not implemented beside LogitScore"),
    ],
)
def test_what_cannot_rank_is_refused_by_name(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """The error says what is wrong with which file, before memory is taken."""
    write_ranker(tmp_path, **change)
    with Engine(str(tmp_path)) as engine, pytest.raises(Exception, match=expected):
        engine.rerank("a", ["b"])


def test_a_chat_template_alone_makes_no_ranker(tmp_path: Path) -> None:
    """Without the step that names its words, a decoder chats."""
    write_ranker(tmp_path)
    assert _rust.model_task(tmp_path) == "rank"
    (tmp_path / "modules.json").unlink()
    assert _rust.model_task(tmp_path) == "generate"


def test_places_of_a_files_template_are_filled_once(tmp_path: Path) -> None:
    """A query that writes a place has written text; a template with many places would make long texts of short ones."""
    told = "{query}|{document}"
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__chat_template__rerank=told)
    count = len(vocabulary()[0])
    shown = PairTemplate.of(path, count)
    assert shown is not None
    tokens, _ = shown.encode("{document}", "b", 100, truncates=False)
    assert tokens == ModelTokenizer.load(path, vocab_size=count).encode_rendered("{document}|b")
    for wrong in (told * 2, "x" * 2_000_000 + told):
        path = write_tiny_model(tmp_path / "w.gguf", tokenizer__chat_template__rerank=wrong)
        with pytest.raises(ModelError, match="is too long, or has more than one query and document"):
            PairTemplate.of(path, count)
