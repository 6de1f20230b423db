"""What Gemma 4's assistants are refused for, by name, and models that go on without one."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from support.draft_models import with_draft_model
from support.kv_sequences import Memory
from support.native import at_once, chat, options, run
from support.tiny_assistant import (
    NUM_TOKENS,
    Written,
    assistant_config,
    assistant_tensors,
    tokenizer_entries,
    write_assistant,
    write_target,
)
from support.tiny_model import metadata, write_tiny_model

from pyagent import _rust
from pyagent.core.errors import CapacityError, ConfigError
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.drafter_loading import FoundDrafter
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of E2B's form, `model.gguf`, and an assistant for it."""
    folder = tmp_path_factory.mktemp("assistants")
    write_target(folder / "model.gguf")
    write_assistant(folder / "assistant")
    return folder


def without(tensors: Written, name: str) -> Written:
    return {key: value for key, value in tensors.items() if key != name}


def with_order(order: list[int], kind: str = "q") -> Written:
    tensors = assistant_tensors(has_clusters=True)
    return tensors | {"masked_embedding.token_ordering": ((len(order),), array(kind, order))}


def in_text(**changes: object) -> dict[str, object]:
    config = assistant_config()
    return config | {"text_config": config["text_config"] | changes}  # type: ignore[operator]


ORDER = list(range(NUM_TOKENS))
CLUSTERED = assistant_config(has_clusters=True)


@pytest.mark.parametrize(
    ("config", "tensors", "text"),
    [
        ({}, without(assistant_tensors(), "post_projection.weight"), '"post_projection.weight" is missing'),
        (
            {},
            without(assistant_tensors(), "model.layers.1.self_attn.q_norm.weight"),
            "layers.1.self_attn.q_norm.weight",
        ),
        ({}, without(assistant_tensors(), "model.layers.2.mlp.up_proj.weight"), '2.mlp.up_proj.weight" is missing'),
        ({}, without(assistant_tensors(), "model.layers.1.layer_scalar"), 'layers.1.layer_scalar" is missing'),
        ({}, assistant_tensors() | {"more.weight": ((1,), array("f", [1.0]))}, "there is a tensor 'more.weight'"),
        ({"backbone_hidden_size": 96}, None, "models of hidden size 96; the model has 64"),
        ({"backbone_hidden_size": "64"}, None, "'backbone_hidden_size' is \"64\"; expected 1 to"),
        ({"backbone_hidden_size": 1 << 40}, None, "'backbone_hidden_size' is 1099511627776; expected 1 to"),
        ({"text_config": None}, None, "lacks 'text_config'"),
        ({"num_experts_of_mine": 3}, None, "'num_experts_of_mine' is not implemented"),
        (
            in_text(num_key_value_heads=2),
            None,
            "2 key/value heads of 32 numbers in windows of 24; the model has 1 key/value",
        ),
        (
            in_text(global_head_dim=32),
            None,
            "layers that see everything have 1 key/value heads of 32 numbers; the model has 1",
        ),
        (
            in_text(sliding_window=48),
            None,
            "in windows of 48; the model has 1 key/value heads of 32 numbers in windows of 24",
        ),
        (in_text(num_kv_shared_layers=1), None, "num_kv_shared_layers' must be all layers"),
        (
            in_text(hidden_size_per_layer_input=32),
            None,
            "hidden_size_per_layer_input' is not implemented for assistants",
        ),
        (
            in_text(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32),
            None,
            "enable_moe_block' is not implemented for assistants",
        ),
        (in_text(use_double_wide_mlp=True), None, "use_double_wide_mlp' is not implemented for assistants"),
        (
            CLUSTERED | {"num_centroids": 20},
            with_order(ORDER),
            "20 clusters of 336 tokens; expected clusters of equal size",
        ),
        (
            CLUSTERED | {"num_centroids": 42},
            with_order(ORDER),
            "42 clusters of 336 tokens; expected clusters of equal size",
        ),
        (CLUSTERED | {"num_centroids": None}, with_order(ORDER), "2048 clusters of 336 tokens"),
        (CLUSTERED | {"centroid_intermediate_top_k": 22}, with_order(ORDER), "at most the 21 centroids"),
        (CLUSTERED, without(with_order(ORDER), "masked_embedding.token_ordering"), "token_ordering"),
        (CLUSTERED, with_order([*ORDER[:-1], 0]), "expected each of the 336 tokens once"),
        (CLUSTERED, with_order([*ORDER[:-1], NUM_TOKENS]), "expected each of the 336 tokens once"),
        (CLUSTERED, with_order([*ORDER[:-1], 0], "i"), "expected each of the 336 tokens once"),
        (CLUSTERED, with_order(ORDER, "f"), "token_ordering' is F32; expected I64 or I32"),
        (CLUSTERED, with_order(ORDER[:-1]), "has 335 numbers; expected each of the 336 tokens once"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    config: dict[str, object], tensors: Written | None, text: str, folder: Path, tmp_path: Path
) -> None:
    """A tensor that is missing or left over, sizes of another model, and clusters that are none."""
    write_assistant(tmp_path, assistant_config() | config, tensors)
    memory = Memory(folder / "model.gguf")
    with pytest.raises(_rust.ModelFileError) as caught:
        memory.model.attach_drafter(tmp_path)
    assert text in str(caught.value)
    assert memory.model.info()["drafter_weight_bytes"] == 0


def test_models_of_other_kinds_are_refused_on_both_sides(folder: Path, tmp_path: Path) -> None:
    """An assistant as a model by itself, of another family's model, and a model as an assistant."""
    with pytest.raises(_rust.ModelFileError, match="an assistant of Gemma 4 answers nothing by itself; name it"):
        _rust.CpuModel.load(folder / "assistant", threads=1, kv_bytes=1 << 20)
    llama = Memory(write_tiny_model(tmp_path / "llama.gguf"))
    with pytest.raises(_rust.ModelFileError, match="models of Gemma 4; the model is llama"):
        llama.model.attach_drafter(folder / "assistant")
    for path in (folder / "model.gguf", folder, tmp_path / "nothing"):
        with pytest.raises(_rust.ModelFileError):
            llama.model.attach_drafter(path)


def written_tokenizer(folder: Path, *swapped: int) -> Path:
    build_tokenizer(metadata(**tokenizer_entries(*swapped)), str(folder)).save(str(folder / "tokenizer.json"))
    return folder


def test_a_model_goes_on_without_an_assistant_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    """It answers as ever, says what was wrong, and holds no memory for it; a tokenizer must be the model's."""
    other_size = assistant_config() | {"backbone_hidden_size": 96}
    cases = {
        write_assistant(tmp_path / "wrong", other_size): "models of hidden size 96; the model has 64",
        write_assistant(tmp_path / "damaged", other_size | {"backbone_hidden_size": 0}): "engine.speculative.model: ",
        written_tokenizer(write_assistant(tmp_path / "other"), 100, 101): "has another vocabulary: token 100 is",
        written_tokenizer(write_assistant(tmp_path / "same")): "",
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
                accounts = backend.engine.models.accounts()  # type: ignore[attr-defined]
                assert accounts.get("draft_weights:tiny", 0) == weights
                assert bool(text) == (weights == 0)

    run(work())


def test_an_assistant_that_lacks_room_is_left_out(folder: Path) -> None:
    """Where a byte is missing: it says what the assistant needs and what there is."""
    found = FoundDrafter("it", "tiny", folder / "assistant", 1000, 500)
    assert found.fitted(options(), 1500) is found
    with pytest.raises(ConfigError, match=r"it needs 1\.5 kB to draft for tiny, which leaves 1\.5 kB"):
        found.fitted(options(), 1499)


def test_what_is_reserved_for_an_assistant_that_is_not_attached_is_given_back(folder: Path) -> None:
    """Where nothing can draft for the model, as it is run; and where the weights do not fit, it is detached again."""
    ledger = Ledger(1500)
    found = FoundDrafter("it", "tiny", folder / "assistant", 1000, 500)
    memory = found.reserve(ledger.reserve, lambda _: None)
    assert ledger.free_bytes == 0
    with pytest.raises(ConfigError, match="it drafts on the cpu runner only, and tiny runs on another one; set"):
        found.load(object(), options(), memory)  # type: ignore[arg-type]
    assert ledger.free_bytes == 1500
    runner = CpuRunner(folder / "model.gguf", options(threads=1).runner)
    with pytest.raises(CapacityError):
        found.load(runner, options(), found.reserve(ledger.reserve, lambda _: None))
    assert runner.model.info()["drafter_weight_bytes"] == 0
