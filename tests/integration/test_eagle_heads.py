"""Heads of EAGLE-3: answers are those without, one that is right has no draft refused, and what does not fit is said.

Drafts after any history are in `test_mtp_heads.py`, with those of other heads.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from integration.test_mtp_heads import chain, cold, swapped_out_and_in
from support.draft_models import (
    has_no_draft_refused,
    same_while_preempted,
    same_with_head,
    with_draft_model,
)
from support.kv_sequences import Memory, head_of
from support.native import at_once, chat, options, run
from support.requests_of_all_kinds import requests_of_all_kinds
from support.tiny_assistant import Written
from support.tiny_eagle import (
    HIDDEN,
    NUM_DRAFTED,
    NUM_TOKENS,
    head_config,
    head_tensors,
    token_lists,
    write_head,
    write_right_head,
    write_target,
)
from support.tiny_model import metadata, vocabulary

from pyagent import _rust
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small llama of random weights, `model.gguf`, and a head, `model.head`, which is usually wrong."""
    folder = tmp_path_factory.mktemp("eagle")
    write_target(folder / "model.gguf")
    write_head(folder / "model.head")
    return folder


def test_answers_of_every_kind_are_the_same(folder: Path) -> None:
    """In a batch of all of them, with log probabilities, forms, penalties and several answers of one prompt."""
    run(
        same_with_head(
            folder, "model.head", requests_of_all_kinds(), options(threads=2, blocks=4096, max_num_batched_tokens=64)
        )
    )


def test_answers_are_the_same_while_requests_are_preempted(folder: Path) -> None:
    """With memory for one answer and a bit: requests yield, swapped or computed again, in the middle of drafts."""
    run(same_while_preempted(folder, "model.head", 60))


def test_a_head_that_is_right_has_no_draft_refused(tmp_path: Path) -> None:
    """Of a model whose tokens follow from the one before alone: all drafts are accepted; and it is asked of itself."""
    path = write_target(tmp_path / "model.gguf", is_repeating=True)
    run(has_no_draft_refused(path, write_right_head(tmp_path / "head")))


def load_with(path: Path, head: Path) -> None:
    _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20, head=head).attach_drafter(head)


def without(name: str) -> Written:
    return {key: one for key, one in head_tensors().items() if key != name}


def with_distances(change: int, kind: str = "q") -> Written:
    distances = [int(distance) for distance in head_tensors()["d2t"][1]]
    distances[-1] += change
    return head_tensors() | {"d2t": ((NUM_DRAFTED,), array(kind, distances))}


CASES: list[tuple[dict[str, object], Written | None, str]] = [
    ({"hidden_size": 80}, None, "it drafts for models of hidden size 80; the model has 64"),
    ({"hidden_size": 80, "target_hidden_size": 64}, None, "with embeddings of width 80; the model has 64"),
    ({"num_attention_heads": 8}, None, "self_attn.q_proj.weight' is 64 x 128; expected 128 x 128"),
    ({"target_hidden_size": 96}, None, "it drafts for models of hidden size 96; the model has 64"),
    ({"target_hidden_size": 1 << 62}, None, f"'target_hidden_size' is {1 << 62}; expected 1 to 1048576"),
    ({"vocab_size": NUM_TOKENS + 1}, None, f"it drafts for models of vocabulary {NUM_TOKENS + 1}; the model has"),
    ({"draft_vocab_size": NUM_TOKENS + 1}, None, f"'draft_vocab_size' is {NUM_TOKENS + 1}; expected 1 to the"),
    ({"draft_vocab_size": 0}, None, "'draft_vocab_size' is 0; expected 1 to the"),
    ({"draft_vocab_size": 64}, None, "lm_head.weight' is 96 x 64; expected 64 x 64"),
    ({"num_hidden_layers": 2}, None, "'num_hidden_layers' is 2; heads of one layer are implemented"),
    ({"model_type": "deepseek_v3"}, None, "the layer of this head of EAGLE-3 is deepseek_v3; expected llama"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}, None, "after [1, 2, 5] layers; the model has 4 layers"),
    (
        {"eagle_aux_hidden_state_layer_ids": [1, 2]},
        None,
        "'eagle_aux_hidden_state_layer_ids' must be 3 layers' numbers",
    ),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, -1]}, None, "must be 3 layers' numbers"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 1 << 62]}, None, "must be 3 layers' numbers"),
    ({"eagle_config": 3}, None, "'eagle_config' must be a table"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, None, "'use_aux_hidden_state' must be true; other heads"),
    ({"eagle_config": {"parallel_draft_step": 4}}, None, "'parallel_draft_step' is 4; heads that draft one token"),
    ({"eagle_config": {"unheard_of": True}}, None, "'eagle_config.unheard_of' is not implemented"),
    ({"unheard_of": 1}, None, "'unheard_of' is not implemented"),
    ({"norm_output": False}, None, "'norm_output' must be true; other heads"),
    ({"norm_before_residual": 1}, None, "'norm_before_residual' must be true or false, got 1"),
    ({"fc_norm": True, "norm_before_fc": True}, None, "'fc_norm' and 'norm_before_fc' are both true"),
    ({"fc_norm": True}, None, '"fc_norm.0.weight" is missing'),
    ({"norm_before_fc": True}, None, '"input_norm.weight" is missing'),
    ({"use_sliding_window": True, "sliding_window": 0}, None, "'sliding_window' is 0"),
    ({"transformer_layer_config": 3}, None, "'transformer_layer_config' must be a table"),
    ({}, without("fc.weight"), '"fc.weight" is missing'),
    ({}, without("midlayer.hidden_norm.weight"), '"midlayer.hidden_norm.weight" is missing'),
    ({}, without("midlayer.self_attn.k_proj.weight"), '"midlayer.self_attn.k_proj.weight" is missing'),
    ({}, without("lm_head.weight"), '"lm_head.weight" is missing'),
    ({}, without("d2t"), '"d2t" is missing'),
    ({}, head_tensors() | {"more.weight": ((1,), array("f", [1.0]))}, "there is a tensor 'more.weight'"),
    ({}, head_tensors() | {"fc.weight": ((HIDDEN, HIDDEN), array("f", [0.0]) * HIDDEN**2)}, "expected 64 x 192"),
    ({}, with_distances(NUM_TOKENS), f"leads out of the vocabulary of {NUM_TOKENS}"),
    ({}, with_distances(-NUM_TOKENS), f"leads out of the vocabulary of {NUM_TOKENS}"),
    ({}, with_distances((1 << 63) - 1 - NUM_TOKENS), f"leads out of the vocabulary of {NUM_TOKENS}"),
    ({}, with_distances(0, "f"), "tensor 'd2t' is F32; expected I64 or I32"),
    ({}, head_tensors() | token_lists([0, 1]), "tensor 'd2t' has 2 numbers; expected one for each of the 96"),
]


@pytest.mark.parametrize(("config", "tensors", "text"), CASES)
def test_what_does_not_fit_is_refused_by_name(
    config: dict[str, object], tensors: Written | None, text: str, folder: Path, tmp_path: Path
) -> None:
    """Sizes of another model, forms that are not known, tensors that are missing or left over, tokens that are none."""
    head = write_head(tmp_path / "head", head_config() | config, tensors)
    with pytest.raises(_rust.ModelFileError) as caught:
        load_with(folder / "model.gguf", head)
    assert text in str(caught.value)


def test_heads_are_refused_where_they_are_none(folder: Path, tmp_path: Path) -> None:
    """As a model by itself; by a model that was loaded without room for it; and another model as a head."""
    head, model = folder / "model.head", folder / "model.gguf"
    with pytest.raises(_rust.ModelFileError, match="a head of EAGLE-3 answers nothing by itself; name it as a draft"):
        _rust.CpuModel.load(head, threads=1, kv_bytes=1 << 20)
    with pytest.raises(_rust.ModelFileError, match="it is no head of EAGLE-3"):
        _rust.CpuModel.load(model, threads=1, kv_bytes=1 << 20, head=model)
    plain = _rust.CpuModel.load(model, threads=1, kv_bytes=1 << 20)
    with pytest.raises(_rust.ModelFileError, match="loaded without room for this head in its pages"):
        plain.attach_drafter(head)
    wide = write_head(tmp_path / "wide", head_config(num_key_value_heads=4))
    with pytest.raises(_rust.ModelFileError, match="loaded without room for this head in its pages"):
        _rust.CpuModel.load(model, threads=1, kv_bytes=1 << 20, head=head).attach_drafter(wide)
    memory = Memory(model)
    memory.model.attach_drafter(None)
    memory.pool.add(1, [3, 4, 5])
    memory.compute((1, [3, 4, 5]))
    memory.pool.reserve(1, 5)
    assert "no head" in memory.model.draft(memory.pool, [1], [5], [0], [None])[1][0]


def written_tokenizer(folder: Path, *, is_other: bool) -> Path:
    tokens, _ = vocabulary()
    if is_other:
        tokens[100], tokens[101] = tokens[101], tokens[100]
    build_tokenizer(metadata(tokenizer__ggml__tokens=tokens), str(folder)).save(str(folder / "tokenizer.json"))
    return folder


def test_a_model_goes_on_without_a_head_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    """It answers as ever, says what was wrong, and holds no memory for it; a tokenizer must be the model's."""
    cases = {
        write_head(
            tmp_path / "wrong", head_config(target_hidden_size=96)
        ): "models of hidden size 96; the model has 64",
        write_head(tmp_path / "part", None, without("fc.weight")): '"fc.weight" is missing',
        write_head(tmp_path / "damaged", head_config(eagle_config=3)): "engine.speculative.model: ",
        written_tokenizer(write_head(tmp_path / "other"), is_other=True): "has another vocabulary: token 100 is",
        written_tokenizer(write_head(tmp_path / "same"), is_other=False): "",
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

    run(work())


def test_a_model_has_no_room_in_its_pages_for_a_head_that_memory_does_not_hold(folder: Path) -> None:
    """With memory for the model and not for its head: it says so, and its pages are those of the model alone."""
    plain = _rust.CpuModel.load(folder / "model.gguf", threads=1, kv_bytes=1 << 20).info()

    async def work() -> None:
        chosen = options(blocks=64, max_num_batched_tokens=64)
        async with with_draft_model(folder / "model.gguf", folder / "model.head", chosen, 1_950_000) as backend:
            (answer,) = await at_once(backend, [chat("the", max_tokens=3, ignore_eos=True)])
            assert answer.usage.completion_tokens == 3
            model: Any = await backend.load()
            assert "to draft for tiny, which leaves" in model.draft_fault.text
            assert model.runner.info.page_bytes == plain["page_bytes"]

    run(work())


def test_memory_of_a_head_is_in_the_account(folder: Path) -> None:
    """Its weights and passes are told before it is loaded, and held as a draft model's; closed, it is forgotten."""
    memory = Memory(folder / "model.gguf", threads=2)
    tokens = [3 + place % 90 for place in range(200)]
    for sequence in range(3):
        memory.pool.add(sequence, tokens)
    memory.compute(*((sequence, tokens) for sequence in range(3)))
    for sequence in range(3):
        memory.pool.reserve(sequence, 203)
    memory.model.draft(memory.pool, [0, 1, 2], [5, 6, 7], [0] * 3, [None] * 3)
    taken = memory.model.info()
    memory.model.attach_drafter(None)
    plain = memory.model.info()["workspace_bytes"]
    about = _rust.describe_drafter(folder / "model.head", 2, 3, 512, 600)
    assert about is not None
    assert plain < taken["workspace_bytes"] <= plain + about["workspace_bytes"]
    assert about["workspace_bytes"] < 4 * (taken["workspace_bytes"] - plain)
    assert about["weight_bytes"] >= taken["drafter_weight_bytes"] > 0

    async def work() -> None:
        async with with_draft_model(folder / "model.gguf", folder / "model.head") as backend:
            await at_once(backend, [chat("on", max_tokens=20, ignore_eos=True)])
            engine: Any = backend.engine
            pool = engine.models
            assert pool.accounts()["draft_weights:tiny"] == taken["drafter_weight_bytes"]
            assert pool.accounts()["draft_workspace:tiny"] > 0
            assert len(pool.loaded()["tiny"].files) == 3  # the model's, and those of the head
            pool.unload("tiny")
            assert not any("tiny" in account for account in pool.accounts())

    run(work())


def test_a_head_of_another_shape_drafts_the_same_warm_and_cold(tmp_path: Path) -> None:
    """With a width, an embedding and heads of its own it has pages of its own in the model's group: bit for bit."""
    path = write_target(tmp_path / "model.gguf")
    config = head_config(hidden_size=96, target_hidden_size=HIDDEN, num_key_value_heads=1)
    write_head(head_of(path), config, head_tensors(hidden=96, kv_heads=1, has_embedding=True))
    memory, log = Memory(path, tmp_path, threads=2), [3 + place * place % 90 for place in range(75)]
    assert [(kind, pages > 1) for kind, _, pages in memory.model.info()["kv_groups"]] == [("recorded", True)]
    swapped = swapped_out_and_in(memory, log)
    memory.pool.clear_index()
    memory.pool.add(1, log)
    for start in range(0, 70, 7):
        memory.compute((1, log[start : min(start + 7, 74)]))
    memory.compute((1, log[70:74]))
    memory.model.copy_pages(memory.pool.fork(1, 3))
    forked = chain(memory, 3, log[-1])
    assert forked == chain(memory, 1, log[-1]) == swapped == cold(memory, log[:-1], log[-1])


def test_a_head_sees_what_its_window_holds(tmp_path: Path) -> None:
    """With a window as long as the text its logits are those without; with a shorter one they are others."""
    tokens, found = [3 + place * place % 90 for place in range(40)], list[bytes]()
    for window in (None, 40, 7):
        path = write_target(tmp_path / f"{window}.gguf")
        more = {} if window is None else {"use_sliding_window": True, "sliding_window": window}
        write_head(tmp_path / f"{window}.head", head_config(**more))
        memory = Memory(path)
        memory.pool.add(1, tokens)
        memory.compute((1, tokens))
        memory.pool.reserve(1, 42)
        memory.model.draft(memory.pool, [1], [5], [0], [None])
        found.append(memory.model.logits())
    assert found[0] == found[1] != found[2]


def test_names_and_places_of_other_trainers_are_read(tmp_path: Path) -> None:
    """A table that names the layers whose outputs are read, one earlier; names under `model.`; a list left out."""
    path, log, found = (
        write_target(tmp_path / "model.gguf"),
        [3 + place * place % 90 for place in range(30)],
        list[bytes](),
    )
    plain = {"eagle_aux_hidden_state_layer_ids": None}
    nested = head_config(**plain, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]})
    under = {
        name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}": one
        for name, one in head_tensors().items()
    }
    layered = {name.replace("midlayer.", "layers.0."): one for name, one in head_tensors().items()}
    default = head_config(**plain), head_config(eagle_aux_hidden_state_layer_ids=[2, 2, 1])
    for config, tensors in (
        (head_config(), None),
        (nested, None),
        (head_config(), under),
        (head_config(), layered),
        *((config, None) for config in default),
    ):
        write_head(tmp_path / "model.head", config, tensors)
        memory = Memory(path)
        memory.pool.add(1, log)
        memory.compute((1, log))
        memory.pool.reserve(1, 32)
        memory.model.draft(memory.pool, [1], [5], [0], [None])
        found.append(memory.model.logits())
    assert found[0] == found[1] == found[2] == found[3] != found[4] == found[5]
