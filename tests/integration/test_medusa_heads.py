"""Heads of Medusa: answers are those without, ones that are right have no draft refused, and what does not fit is said.

Drafts after any history, in batches and of sequences that are none are in `test_assistants.py`.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from integration.test_assistants import Assisted
from support.draft_models import has_no_draft_refused, same_while_preempted, same_with_head, with_draft_model
from support.kv_sequences import random_tokens
from support.native import at_once, chat, options, run
from support.requests_of_all_kinds import requests_of_all_kinds
from support.tiny_assistant import Written
from support.tiny_eagle import NUM_TOKENS, write_target
from support.tiny_medusa import (
    NUM_HEADS,
    NUM_LAYERS,
    as_the_paper_has_it,
    medusa_config,
    medusa_tensors,
    write_counting_target,
    write_medusa,
    write_right_medusa,
)
from support.tiny_model import HIDDEN
from support.torch_file import to_torch_file

from pyagent import _rust


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small llama of random weights, `model.gguf`, and heads, `assistant`, which are usually wrong."""
    folder = tmp_path_factory.mktemp("medusa")
    write_target(folder / "model.gguf")
    write_medusa(folder / "assistant")
    return folder


def test_answers_of_every_kind_are_the_same(folder: Path) -> None:
    """In a batch of all of them, with log probabilities, forms, penalties and several answers of one prompt."""
    chosen = options(threads=2, blocks=4096, max_num_batched_tokens=64)
    run(same_with_head(folder, "assistant", requests_of_all_kinds(), chosen))


def test_answers_are_the_same_while_requests_are_preempted(folder: Path) -> None:
    """With memory for one answer and a bit: requests yield, swapped or computed again, in the middle of drafts."""
    run(same_while_preempted(folder, "assistant", 60))


def test_heads_that_are_right_have_no_draft_refused(tmp_path: Path) -> None:
    """Of a model that counts: each head's token is accepted at its own place; and they are asked of themselves."""
    path = write_counting_target(tmp_path / "model.gguf")
    run(has_no_draft_refused(path, write_right_medusa(tmp_path / "heads")))


def test_each_head_drafts_one_token(folder: Path) -> None:
    """A sequence has as many drafts as there are heads, from any row on; each of these has a head's bits."""
    memory, tokens = Assisted(folder), random_tokens(1, 30)
    memory.pool.add(1, tokens)
    memory.sample((1, tokens))
    logits, before = list[bytes](), None
    for _ in range(NUM_HEADS):
        (likeliest,) = memory.draft([1], [5], [before])
        assert likeliest is not None
        logits.append(memory.model.logits())
        before = 0
    assert len(set(logits)) == NUM_HEADS
    assert memory.draft([1, 1], [5, 5], [0, None])[0] is None  # after the last one
    again = memory.draft([1, 1], [5, 5], [1, None])
    assert None not in again
    assert memory.model.logits() == logits[0] + logits[1]  # the first head's rows come first


def same_drafts(folder: Path, tmp_path: Path, config: dict[str, object], tensors: Written) -> tuple[Path, list[bytes]]:
    """Write heads beside a model; return their folder, and the logits of all of them after a text."""
    if not (tmp_path / "model.gguf").exists():
        (tmp_path / "model.gguf").symlink_to(folder / "model.gguf")
    heads = write_medusa(tmp_path / "assistant", config, tensors)
    return heads, Assisted(tmp_path).cold(random_tokens(4, 30), NUM_HEADS)


def test_files_of_the_papers_authors_draft_the_same(folder: Path, tmp_path: Path) -> None:
    """Bit for bit: what torch saved, whose configuration has no sizes and counts too few heads; and under a prefix."""
    expected = Assisted(folder).cold(random_tokens(4, 30), NUM_HEADS)
    config: dict[str, object] = {"medusa_num_heads": 2, "medusa_num_layers": NUM_LAYERS, "base_model_name_or_path": "x"}
    named = as_the_paper_has_it(medusa_tensors())
    heads, found = same_drafts(folder, tmp_path, config, named)
    assert found == expected
    to_torch_file(heads, after="medusa_lm_head.pt")
    assert Assisted(tmp_path).cold(random_tokens(4, 30), NUM_HEADS) == expected
    about = _rust.describe_drafter(heads)
    assert about is not None
    told = [about[key] for key in ("kind", "backbone_size", "num_layers", "vocab_size", "num_drafted", "most_drafts")]
    assert told == ["medusa", HIDDEN, NUM_LAYERS, NUM_TOKENS, NUM_TOKENS, NUM_HEADS]
    with pytest.raises(_rust.ModelFileError, match="a single file of weights; give the folder it is in"):
        _rust.read_model_header(heads / "medusa_lm_head.pt")
    (heads / "medusa_lm_head.pt").unlink()
    _, found = same_drafts(folder, tmp_path, config, {f"medusa_heads.{name}": one for name, one in named.items()})
    assert found == expected


def test_one_matrix_may_give_all_heads_logits(folder: Path, tmp_path: Path) -> None:
    """Under either of its names: the drafts are those of a file that has it for each head."""
    shared = medusa_tensors(has_bias=False, has_one_output=True)
    one = shared.pop("lm_head.weight")
    _, expected = same_drafts(
        folder, tmp_path, medusa_config(), shared | {f"lm_heads.{head}.weight": one for head in range(NUM_HEADS)}
    )
    for name in ("lm_head.weight", "lm_heads.0.weight"):
        _, found = same_drafts(folder, tmp_path, medusa_config(original_lm_head=True), shared | {name: one})
        assert found == expected


def with_map(tokens: list[int], *, picked: bool, kind: str = "q") -> Written:
    """Heads that draft of some tokens, with a row of each alone, or with those of all tokens."""
    tensors = medusa_tensors() | {"token_map": ((len(tokens),), array(kind, tokens))}
    for name, (_, values) in list(tensors.items()) if picked else ():
        if name.startswith("lm_heads."):
            rows = [values[token * HIDDEN : (token + 1) * HIDDEN] for token in tokens]
            tensors[name] = ((len(tokens), HIDDEN), array("f", [number for row in rows for number in row]))
    return tensors


def test_heads_may_draft_of_some_tokens(folder: Path, tmp_path: Path) -> None:
    """With a row of each, or picked from those of all: the logits are these tokens', and so are the drafts."""
    whole = [array("f", row) for row in Assisted(folder).cold(random_tokens(4, 30), NUM_HEADS)]
    tokens = [200, 7, 31, 90, 5, 64, 150, 33]
    for picked in (False, True):
        config = medusa_config(truncated_vocab_size=len(tokens))
        _, found = same_drafts(folder, tmp_path, config, with_map(tokens, picked=picked))
        assert [array("f", row) for row in found] == [array("f", [row[token] for token in tokens]) for row in whole]
    memory = Assisted(tmp_path)
    memory.pool.add(1, tokens)
    memory.sample((1, tokens))
    ((token, _),) = memory.draft([1], [5])  # type: ignore[misc]
    logits = array("f", memory.model.logits())
    assert token == tokens[logits.index(max(logits))]


def without(name: str) -> Written:
    return {key: one for key, one in medusa_tensors().items() if key != name}


CASES: list[tuple[dict[str, object], Written | None, str]] = [
    ({"hidden_size": 80}, None, "they draft for models of hidden size 80; the model has 64"),
    ({"hidden_size": 0}, None, "'hidden_size' is 0; expected 1 to 16777216"),
    ({"vocab_size": NUM_TOKENS + 1}, None, f"they draft for models of vocabulary {NUM_TOKENS + 1}; the model has"),
    ({"vocab_size": 1 << 62}, None, f"'vocab_size' is {1 << 62}; expected 1 to 16777216"),
    ({"truncated_vocab_size": NUM_TOKENS + 1}, None, f"'truncated_vocab_size' is {NUM_TOKENS + 1}; expected 1 to"),
    ({"num_heads": NUM_HEADS + 1}, None, f"names {NUM_HEADS + 1} heads of Medusa; the file has {NUM_HEADS}"),
    ({"num_heads": 65}, None, "'num_heads' is 65; expected 1 to 64"),
    ({"num_hidden_layers": 3}, None, '"blocks.0.layers.2.weight" is missing'),
    ({"num_hidden_layers": 1}, None, "there is a tensor 'blocks.0.layers.1.bias', which is not implemented for heads"),
    ({"logit_scale": 2.0}, None, "'logit_scale' is 2.0; heads of Medusa with 1 are implemented"),
    ({"unheard_of": 1}, None, "'unheard_of' is not implemented"),
    ({"original_lm_head": True}, None, "there is a tensor 'lm_heads.1.weight'"),
    ({"truncated_vocab_size": 8}, None, '"token_map" is missing'),
    (
        {"truncated_vocab_size": 2},
        with_map([1, 2, 3], picked=False),
        "'token_map' has 3 numbers; expected one for each",
    ),
    ({"truncated_vocab_size": 1}, with_map([NUM_TOKENS], picked=False), f"has {NUM_TOKENS}, which is no token of"),
    ({"truncated_vocab_size": 1}, with_map([-1], picked=False), "has -1, which is no token of"),
    ({"truncated_vocab_size": 1}, with_map([1], picked=False, kind="f"), "'token_map' is F32; expected I64 or I32"),
    ({}, without("blocks.2.layers.1.weight"), '"blocks.2.layers.1.weight" is missing'),
    ({}, without("lm_heads.3.weight"), '"lm_heads.3.weight" is missing'),
    ({}, {"lm_heads.0.weight": ((1,), array("f", [1.0]))}, f"names {NUM_HEADS} heads of Medusa; the file has 0"),
    ({"num_heads": None}, {"lm_heads.0.weight": ((1,), array("f", [1.0]))}, '"blocks.0.layers.0.weight" is missing'),
    (
        {},
        medusa_tensors() | {"blocks.1.layers.0.weight": ((HIDDEN, 32), array("f", [0.0]) * (HIDDEN * 32))},
        "tensor 'blocks.1.layers.0.weight' is 64 x 32; expected 64 x 64",
    ),
    (
        {},
        medusa_tensors() | {"lm_heads.1.weight": ((32, HIDDEN), array("f", [0.0]) * (HIDDEN * 32))},
        f"tensor 'lm_heads.1.weight' is 32 x 64; expected {NUM_TOKENS} x 64",
    ),
]


@pytest.mark.parametrize(("config", "tensors", "text"), CASES)
def test_what_does_not_fit_is_refused_by_name(
    config: dict[str, object], tensors: Written | None, text: str, folder: Path, tmp_path: Path
) -> None:
    """Sizes of another model, forms that are not known, tensors that are missing or left over, tokens that are none."""
    model = _rust.CpuModel.load(folder / "model.gguf", threads=1, kv_bytes=1 << 20)
    with pytest.raises(_rust.ModelFileError) as caught:
        model.attach_drafter(write_medusa(tmp_path / "heads", medusa_config(**config), tensors))
    assert text in str(caught.value)


def test_heads_answer_nothing_by_themselves(folder: Path) -> None:
    """As a model they are refused, and it is said where to name them."""
    with pytest.raises(
        _rust.ModelFileError, match="heads of Medusa answer nothing by themselves; name them as a draft"
    ):
        _rust.CpuModel.load(folder / "assistant", threads=1, kv_bytes=1 << 20)


def test_a_model_goes_on_without_heads_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    """It answers as ever and says what was wrong; the ledger holds what heads take, and nothing without any."""
    cases = {
        write_medusa(tmp_path / "wrong", medusa_config(hidden_size=96)): "models of hidden size 96; the model has 64",
        write_medusa(tmp_path / "part", None, without("lm_heads.3.weight")): '"lm_heads.3.weight" is missing',
        write_medusa(tmp_path / "damaged", medusa_config(num_heads=-1)): "engine.speculative.model: ",
        folder / "assistant": "",
    }

    async def work() -> None:
        for path, text in cases.items():
            async with with_draft_model(folder / "model.gguf", path) as backend:
                (answer,) = await at_once(backend, [chat("the", max_tokens=3, ignore_eos=True)])
                assert answer.usage.completion_tokens == 3
                model: Any = await backend.load()
                assert text in model.draft_fault.text
                assert bool(text) == bool(model.draft_fault.text)
                weights = model.runner.model.info()["drafter_weight_bytes"]
                pool: Any = backend.engine
                accounts = pool.models.accounts()
                assert accounts.get("draft_weights:tiny", 0) == weights
                assert bool(text) == (weights == 0)
                if not text:
                    drafter = model.engine.speculation.model.model
                    assert drafter.most_drafts == NUM_HEADS
                    size = model.runner.info.weight_bytes
                    assert drafter.weight_ratio == pytest.approx(weights / size / NUM_HEADS)

    run(work())
