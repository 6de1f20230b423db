"""Plugins' architectures that describe a family: read by the CPU runner, and refused by name where they are wrong."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct
from support.described_folders import EXAMPLE, EXAONE, TENSORS, Exaone, changed, write_as_exaone
from support.folder_tokenizer import write_model_folder
from support.installed import find_first, write_distribution
from support.logit_sequences import Sequences
from support.native import engine_of
from typer.testing import CliRunner

from pyagent.cli import models
from pyagent.core.backends import collect
from pyagent.core.errors import ConfigError, ModelError, PluginError
from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.core.plugin_checks import checked_items
from pyagent.core.runners.architecture import BroughtArchitecture, FamilyDescription
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.infrastructure.engine.runners.family import Family
from pyagent.infrastructure.models.describe import describe_model
from pyagent.testing.suites.made_up_folder import write_folder

TOKENS = [(7 * place + place * place) % 90 for place in range(50)]
STEP = LargestStep(64, 4)
NUM_HEADS = 4
Kinds = Mapping[str, BroughtArchitecture]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("llama"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def folder(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as EXAONE's."""
    return write_as_exaone(llama, tmp_path_factory.mktemp("exaone"))


def described(config: Mapping[str, Any] | None = None, **changes: Any) -> Kinds:
    """EXAONE's description, of which fields of its `config`, or something else, differ."""

    def describe(fields: Mapping[str, Any]) -> FamilyDescription:
        told = Exaone().describe(fields)
        return replace(told, config={**told.config, **(config or {})}, **changes)

    return {"exaone": BroughtArchitecture(SimpleNamespace(name="exaone", describe=describe), "mine")}


def decay(head: Any, distance: Any) -> Any:
    return -np.log1p(distance.astype(float))


def far(head: Any, distance: Any) -> Any:
    """Less than all, by each head otherwise."""
    return np.where(distance > 4 + head, -np.inf, 0.3 * distance)


def weight_bytes(path: Path, kinds: Kinds) -> int:
    return CpuRunner(path, RunnerOptions(threads=1, kv_bytes=1 << 20, architectures=kinds)).info.weight_bytes


def refused(path: Path, kinds: Kinds) -> str:
    """What is said of a folder when it is loaded."""
    with pytest.raises((ModelError, PluginError, ConfigError)) as error:
        CpuRunner(path, RunnerOptions(threads=1, kv_bytes=1 << 20, architectures=kinds))
    return str(error.value)


def test_described_folder_is_the_familys_bit_for_bit(llama: Path, folder: Path) -> None:
    """The same tensors and fields under EXAONE's names give a Llama's logits, whole, in chunks and beside another."""
    expected = Sequences(llama).logits((0, TOKENS))
    found = Sequences(folder, EXAONE)
    assert np.array_equal(found.logits((0, TOKENS)), expected)
    parts = [found.logits((1, TOKENS[start : start + 20]), (2, TOKENS[start : start + 1]))[:-1] for start in (0, 20)]
    assert np.array_equal(np.concatenate(parts), expected[:40])


def test_card_and_estimate_are_the_familys(llama: Path, folder: Path) -> None:
    """What the model takes is what the Llama takes; the card has both names, and the runners that compute it."""
    plain, ours = describe_model(llama), describe_model(folder, architectures=EXAONE)
    assert (ours.family, ours.architecture, ours.runners) == ("exaone", "llama", ("cpu", "torch"))
    assert replace_struct(ours, family=plain.family, file_bytes=plain.file_bytes) == plain
    options = RunnerOptions(threads=1, architectures=EXAONE)
    assert CPU.estimate(folder, options, STEP) == CPU.estimate(llama, options, STEP)


def test_tables_count_where_they_are_kept(folder: Path) -> None:
    """Layers with one function share its table: the estimate has its numbers, as the loaded model does."""
    bare, bare_bytes = describe_model(folder, architectures=EXAONE), weight_bytes(folder, EXAONE)
    for functions, num_tables in (([decay, decay], 1), ([decay, far], 2), ([None, far], 1)):
        kinds = described(score_functions=functions)
        scored = describe_model(folder, architectures=kinds)
        numbers = num_tables * NUM_HEADS * bare.context_length
        assert scored.weight_bytes - bare.weight_bytes == 4 * numbers
        assert scored.runners == ("cpu",)
        loaded = weight_bytes(folder, kinds) - bare_bytes
        assert 4 * numbers < loaded < 4 * numbers + 1024 * num_tables  # padding


def test_only_layers_with_a_function_add_to_scores(folder: Path) -> None:
    """A table of zeros, and None, are a Llama's own logits; a function of one layer is not that of the other."""
    plain = Sequences(folder, EXAONE).logits((0, TOKENS))

    def of(*functions: Any) -> Any:
        return Sequences(folder, described(score_functions=functions)).logits((0, TOKENS))

    assert np.array_equal(of(None, None), plain)
    assert np.abs(of(lambda head, distance: 0 * distance, None) - plain).max() < 1e-5
    first, second = of(far, None), of(None, far)
    for found in (first, second):
        assert np.array_equal(found[0], plain[0])
        assert np.abs(found[1:] - plain[1:]).max() > 1e-2
    assert np.abs(first - second).max() > 1e-2


def test_another_description_is_another_models_kv(llama: Path, folder: Path) -> None:
    """Engines take each other's KV where descriptions are equal, and not where a name, field or number is another."""

    def family(path: Path, kinds: Kinds) -> str:
        return CpuRunner(path, RunnerOptions(threads=1, kv_bytes=1 << 20, architectures=kinds)).kv_shape.family

    assert family(llama, EXAONE) == ""
    kinds = [
        EXAONE,
        described(score_functions=[decay, decay]),
        described(score_functions=[decay, None]),
        described(score_functions=[decay, far]),
        described(score_functions=[far, far]),
        described(tensor_names={**TENSORS, "unused": "other"}),
        described(config={"rope_theta": 12345.0}),
    ]
    told = [family(folder, each) for each in kinds]
    assert len({*told, ""}) == len(kinds) + 1
    assert told == [family(folder, each) for each in kinds]


def test_engine_in_a_process_of_its_own_finds_the_plugin(
    llama: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed plugin is found by its entry point: by the engine's process, and by `models show`."""
    find_first(monkeypatch, tmp_path)
    (tmp_path / "pyagent_exaone.py").write_text(EXAMPLE.read_text())
    write_distribution(tmp_path, "exaone", "exaone.architectures = pyagent_exaone")
    monkeypatch.delitem(sys.modules, "pyagent_exaone", raising=False)
    chat = ChatRequest(prompt="the user is", sampling=SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))

    async def answered(path: Path, *, process: bool) -> str:
        async with engine_of(path, process=process) as backend:
            return (await collect(backend.chat(chat))).text

    assert asyncio.run(answered(folder, process=True)) == asyncio.run(answered(llama, process=False)) != ""
    found = CliRunner().invoke(models.app, ["show", str(folder)])
    assert found.exit_code == 0, found.output
    assert "architecture  exaone, read as llama, 2 layers" in found.output
    assert "runners       cpu, torch" in found.output


def test_auto_takes_the_runner_that_can(folder: Path) -> None:
    """A runner that has no form of the architecture is passed over: the CPU's is taken."""

    class Other:
        name = "other"

        def unavailable_reason(self) -> None: ...

        def estimate(self, path: Path, *_: object) -> None:
            raise ModelError(f"{path}: no", model=str(path))

    choice = RunnerChoice((Other(), CPU), is_auto=True)  # type: ignore[arg-type]
    assert choice.runner_for(folder, RunnerOptions(threads=1, architectures=EXAONE), STEP)[0] is CPU


def test_network_alone_is_no_form_of_the_cpu_runners(folder: Path) -> None:
    """Of an architecture without `describe` it says what computes it, and what else is wrong as without the plugin."""
    kind = SimpleNamespace(name="exaone", shape=lambda config: None, load=lambda *_: None)
    damaged = folder.parent / "damaged"
    damaged.mkdir(exist_ok=True)
    (damaged / "config.json").write_text('{"model_type": "llama"}')

    def said(path: Path, **kinds: Any) -> str:
        brought = {name: BroughtArchitecture(kind, "mine") for name, kind in kinds.items()}
        with pytest.raises(ModelError) as error:
            CPU.estimate(path, RunnerOptions(threads=1, architectures=brought), STEP)
        return str(error.value)

    assert "the plugin 'mine' computes exaone by a network, which needs the torch runner" in said(folder, exaone=kind)
    assert "architecture 'exaone' is not supported" in said(folder)
    assert said(damaged, llama=SimpleNamespace(name="llama")) == said(damaged)


def raising(error: Exception) -> Callable[[Any], Any]:
    def describe(config: Any) -> Any:
        raise error

    return describe


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (lambda config: {"config": config}, "plugin 'mine' gave {'config': .* as a family's description; expected Fam"),
        (lambda config: FamilyDescription(config=7), "plugin 'mine' gave 7 as a family's config; expected a mapping"),  # type: ignore[arg-type]
        (lambda config: FamilyDescription(config={}), "plugin 'mine' gave a family's config without a `model_type`"),
        (raising(RuntimeError("no")), "plugin 'mine' failed to describe the family of .*: RuntimeError: no"),
        (raising(KeyError("d_model")), "config.json lacks 'd_model', which the architecture exaone needs"),
        (raising(TypeError("an odd value")), "the architecture exaone cannot read config.json: an odd value"),
        (
            lambda config: FamilyDescription(config={"model_type": "llama"}),
            "config.json: 'vocab_size' is not implemented for",
        ),
    ],
)
def test_answers_that_are_no_description_are_refused(told: Any, said: str, folder: Path) -> None:
    """Other values, failures, fields that nobody looked at: who is at fault is named, and there is no traceback."""
    kinds = {"exaone": BroughtArchitecture(SimpleNamespace(name="exaone", describe=told), "mine")}
    assert re.search(said, refused(folder, kinds))
    with pytest.raises((ModelError, PluginError), match=said):
        describe_model(folder, architectures=kinds)


LOOP: dict[str, Any] = {}
LOOP["loop"] = LOOP


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": {"model_type": "llamas"}}, "architecture 'llamas' is not supported.* describes .* as 'llamas'"),
        ({"config": {"odd": 1}}, "'odd' is not implemented.*the plugin 'mine' describes .*exaone as 'llama'"),
        ({"config": {"odd": object()}}, "plugin 'mine' gave a family's config that is no JSON"),
        ({"config": LOOP}, "plugin 'mine' gave a family's config that is no JSON"),
        ({"config": {"num_hidden_layers": 1}}, "'num_hidden_layers' is 1, but there is a tensor .*layers.1"),
        ({"config": {"vocab_size": 1 << 60}}, None),
        ({"config": {"hidden_size": 128}}, "the embedding is .*, but the hidden size is 128"),
        ({"tensor_names": {}}, "tensor \".*\" is missing.*the plugin 'mine'"),
        ({"tensor_names": 7}, "plugin 'mine' gave 7 as tensor_names; expected a mapping of texts"),
        ({"tensor_names": {"a": 7}}, r"plugin 'mine' gave \('a', 7\) in tensor_names; expected texts"),
        ({"tensor_names": {"a..b": "c"}}, "plugin 'mine' describes .*exaone wrongly: .*'a..b'; expected parts between"),
        ({"tensor_names": {"a.{n}": "c"}}, "plugin 'mine' describes .*the same words in braces"),
        (
            {"tensor_names": TENSORS | {"transformer.h.{layer}.ln_1": TENSORS["transformer.h.{layer}.ln_2"]}},
            r"'transformer.h.0.ln_1.weight' and 'transformer.h.0.ln_2.weight' would both be 'model.layers.0.post_",
        ),
        (
            {"tensor_names": TENSORS | {"transformer.h.{layer}.ln_1": "model.layers.{layer}.ln_1"}},
            'tensor "model.layers.0.input_layernorm.weight" is missing',
        ),
        ({"score_functions": 7}, "plugin 'mine' gave 7 as score_functions"),
        ({"score_functions": [7, None]}, "plugin 'mine' gave 7 among the score_functions; expected functions, or None"),
        ({"score_functions": [None]}, "1 score functions; expected one, or None, for each of 2 layers"),
        ({"score_functions": [lambda *_: 1 // 0, None]}, "plugin 'mine' failed to evaluate the score .*ZeroDivision"),
        ({"score_functions": [None, lambda head, distance: distance * np.nan]}, "layer 1 gives nan to head 0 at"),
        ({"score_functions": [None, lambda head, distance: distance - np.inf]}, "layer 1 masks distance 0 of head 0"),
        ({"score_functions": [None, lambda head, distance: distance[:, :3]]}, r"plugin 'mine': .* the shape \(1, 3\)"),
    ],
)
def test_wrong_descriptions_are_refused_by_name(changes: dict[str, Any], said: str | None, folder: Path) -> None:
    """What a description says wrongly is told with the plugin, or with what it describes; sizes are the tensors'."""
    kinds = described(**changes)
    if said is None:
        CpuRunner(folder, RunnerOptions(threads=1, kv_bytes=1 << 20, architectures=kinds))
        return
    assert re.search(said, refused(folder, kinds), re.DOTALL)


def test_tables_are_bounded_and_need_numpy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many numbers, attention that reads no table, and an installation without numpy are told from the header."""
    kinds = described(config={"max_position_embeddings": 1 << 27}, score_functions=[decay, decay])
    with pytest.raises(ModelError, match="numbers; expected at most 67108864: give layers the same function"):
        describe_model(folder, architectures=kinds)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ConfigError, match="score functions of exaone need numpy, which is not installed: pip install"):
        describe_model(folder, architectures=described(score_functions=[decay, decay]))


def test_attention_that_reads_no_table_is_refused(folder: Path) -> None:
    """In dual chunks, where a key's score is by another query, functions are refused from the header."""
    dual = {"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 64, "local_size": 16}}
    describe_model(folder, architectures=described(config=dual))
    with pytest.raises(ModelError, match="score functions are not implemented where attention is in dual chunks"):
        describe_model(folder, architectures=described(config=dual, score_functions=[None, decay]))


def test_field_that_nobody_looked_at_is_refused(llama: Path, folder: Path, tmp_path: Path) -> None:
    """One that says something, unless it is known to change no number or says how weights are stored."""
    write_as_exaone(llama, tmp_path)
    changed(tmp_path / "config.json", odd=None, none=False, empty=[], torch_dtype="float32", quantization_config={})
    describe_model(tmp_path, architectures=EXAONE)
    changed(tmp_path / "config.json", sliding=7)
    with pytest.raises(
        ModelError, match=r"'sliding' is not implemented for exaone, .* look at it by config\.get\('sliding'\)"
    ):
        describe_model(tmp_path, architectures=EXAONE)


def test_hostile_folders_are_refused_as_without_a_plugin(folder: Path, tmp_path: Path) -> None:
    """A `config.json` that is no object, none at all, and a file in the folder's place are not asked of the plugin."""
    for text in ("[]", "{", '{"model_type": ["exaone"]}'):
        (tmp_path / "config.json").write_text(text)
        assert Family.of(tmp_path, EXAONE) is None
    (tmp_path / "config.json").unlink()
    assert Family.of(tmp_path, EXAONE) is None
    assert Family.of(folder / "config.json", EXAONE) is None


def test_text_half_has_the_fields_of_both(llama: Path, folder: Path, tmp_path: Path) -> None:
    """Of a folder with `text_config`, a description is told those fields beside the outer ones."""
    write_as_exaone(llama, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": fields["model_type"], "vocab_size": fields.pop("vocab_size"), "text_config": fields}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    found, expected = (Sequences(path, EXAONE).logits((0, TOKENS)) for path in (tmp_path, folder))
    assert np.array_equal(found, expected)


def test_host_takes_either_form_and_not_a_half() -> None:
    """An architecture has `describe`, or `shape` and `load`; one with neither is the plugin's fault, by name."""
    parts = {"describe": len, "shape": len, "load": len}
    for names in (["describe"], ["shape", "load"], ["describe", "shape"], list(parts)):
        kind = SimpleNamespace(name="mine", **{name: parts[name] for name in names})
        assert checked_items("mine", "architectures", [kind]) == {"mine": kind}
    for names in ([], ["shape"], ["load"]):
        kind = SimpleNamespace(name="mine", **{name: parts[name] for name in names})
        with pytest.raises(PluginError, match="expected architectures with `describe`, or with `shape` and `load`"):
            checked_items("mine", "architectures", [kind])


def test_functions_take_the_place_of_what_the_family_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPT's own slopes are there without functions, as the example's table says them; with any, a None adds nothing."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[1] / "pyagent-mpt"))
    example = runpy.run_path(str(EXAMPLE.parents[1] / "pyagent-mpt/test_mpt_conformance.py"))
    write_folder(tmp_path, example["TestMpt"].config, example["TestMpt"].tensors)
    inner, alibi = example["Mpt"](), sys.modules["pyagent_mpt"].alibi

    def of(*functions: Any) -> Any:
        told = SimpleNamespace(
            name="mpt", describe=lambda config: replace(inner.describe(config), score_functions=functions)
        )
        return Sequences(tmp_path, {"mpt": BroughtArchitecture(told, "mine")}).logits((0, TOKENS))

    own = of()
    assert np.array_equal(own, Sequences(tmp_path).logits((0, TOKENS)))
    assert np.abs(of(alibi, alibi) - own).max() < 1e-5
    nothing = of(None, alibi)
    assert np.abs(nothing - own).max() > 1e-3
    assert np.abs(nothing - of(lambda head, distance: 0 * distance, alibi)).max() < 1e-5
