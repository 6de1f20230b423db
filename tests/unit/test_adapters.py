"""Adapters on the CPU runner: whose numbers they change, what of a file is refused, and how they are named."""

from __future__ import annotations

import json
import math
import os
import random
from array import array
from operator import add, mul
from pathlib import Path

import pytest
from support import quantised_model
from support.quantised_model import write_quantised_model
from support.tiny_adapter import SHAPES, Tensor, tensors, write_adapter, write_gguf_adapter
from support.tiny_gemma4 import gemma4_tensors, write_gemma4
from support.tiny_model import write_tiny_model
from support.tiny_sparse import write_sparse

from pyagent import _rust
from pyagent.infrastructure.engine.models.adapter_names import names_of, split_name

TOKENS = [(5 * place + place * place) % 250 for place in range(40)]
FIRST, SECOND = 11, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and two adapters for it, the second of DoRA, wider and for a part of its matrices."""
    folder = tmp_path_factory.mktemp("adapters")
    write_tiny_model(folder / "tiny.gguf")
    write_adapter(folder / "first", 1)
    some = ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")
    write_adapter(
        folder / "second", given=tensors(2, rank=20, matrices=some, is_dora=True), config={"use_dora": True, "r": 20}
    )
    return folder


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> _rust.CpuModel:
    """A small model with latent attention."""
    path = write_sparse(tmp_path_factory.mktemp("latent") / "m.gguf", "deepseek2")
    return _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22, kv_type="f32")


def model_of(folder: Path, isa: str | None = None) -> _rust.CpuModel:
    model = _rust.CpuModel.load(folder / "tiny.gguf", threads=2, kv_bytes=1 << 22, kv_type="f32", isa=isa)
    for adapter_id, name in ((FIRST, "first"), (SECOND, "second")):
        _rust.AdapterFile.open(model, folder / name).load(model, adapter_id)
    return model


def logits(model: _rust.CpuModel, parts: list[tuple[int, list[int]]], step: int = 1 << 20) -> list[list[bytes]]:
    """Rows of logits of each (adapter, tokens), computed side by side, so many tokens of each in a step."""
    info = model.info()
    pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
    for sequence, (adapter_id, tokens) in enumerate(parts):
        pool.add(sequence, tokens, adapter_id=adapter_id)
        pool.reserve(sequence, len(tokens))
    rows: list[list[bytes]] = [[] for _ in parts]
    width = 4 * info["vocab_size"]
    for start in range(0, max(len(tokens) for _, tokens in parts), step):
        chunks = {at: tokens[start : start + step] for at, (_, tokens) in enumerate(parts) if tokens[start:]}
        lengths = [len(chunk) for chunk in chunks.values()]
        flat = [token for chunk in chunks.values() for token in chunk]
        errors = model.execute(pool, list(chunks), lengths, flat, num_outputs=lengths)[2]
        assert not errors
        given = iter(model.logits()[at : at + width] for at in range(0, width * len(flat), width))
        for at, length in zip(chunks, lengths, strict=True):
            rows[at] += [next(given) for _ in range(length)]
    return rows


def test_a_row_has_the_same_bits_whoever_is_beside_it(folder: Path) -> None:
    """Alone, in mixed batches, in chunks, token by token, on every instruction set: rows of logits are equal bits."""
    model = model_of(folder)
    alone = {adapter_id: logits(model, [(adapter_id, TOKENS)])[0] for adapter_id in (0, FIRST, SECOND)}
    assert len({b"".join(rows) for rows in alone.values()}) == 3
    mixed = [FIRST, 0, SECOND, 0, FIRST]
    for step in (1 << 20, 7, 1):
        found = logits(model, [(adapter_id, TOKENS[: 30 + at]) for at, adapter_id in enumerate(mixed)], step)
        for adapter_id, rows in zip(mixed, found, strict=True):
            assert rows == alone[adapter_id][: len(rows)], f"adapter {adapter_id}, {step} tokens a step"
    for isa in _rust.cpu_features()["isas"]:
        other = logits(model_of(folder, isa), [(FIRST, TOKENS), (SECOND, TOKENS)])
        assert other == [alone[FIRST], alone[SECOND]], isa


def test_the_bare_model_computes_as_if_there_were_no_adapters(folder: Path) -> None:
    """Rows without an adapter, beside others, have the bits that a model has into which no adapter was loaded."""
    plain = _rust.CpuModel.load(folder / "tiny.gguf", threads=2, kv_bytes=1 << 22, kv_type="f32")
    (expected,) = logits(plain, [(0, TOKENS)])
    assert logits(model_of(folder), [(FIRST, TOKENS), (0, TOKENS)])[1] == expected


def test_quantised_weights_compute_beside_adapters_as_without(tmp_path: Path) -> None:
    """The bare model's rows keep their bits beside an adapter, whose own are the same alone and in a batch."""
    path = write_quantised_model(tmp_path / "q.gguf")
    hidden, ffn, kv = quantised_model.HIDDEN, quantised_model.FFN, quantised_model.HIDDEN // 2
    sizes = [
        (hidden, hidden),
        (kv, hidden),
        (kv, hidden),
        (hidden, hidden),
        (ffn, hidden),
        (ffn, hidden),
        (hidden, ffn),
    ]
    given = tensors(1, shapes=dict(zip(SHAPES, sizes, strict=True)), is_dora=True)
    adapter = write_adapter(tmp_path / "adapter", given=given, config={"use_dora": True})
    plain, model = (_rust.CpuModel.load(path, threads=2, kv_bytes=1 << 22) for _ in range(2))
    _rust.AdapterFile.open(model, adapter).load(model, FIRST)
    (bare,), (alone,) = logits(plain, [(0, TOKENS)]), logits(model, [(FIRST, TOKENS)])
    assert alone != bare
    for step in (1 << 20, 1):
        assert logits(model, [(0, TOKENS), (FIRST, TOKENS), (0, TOKENS)], step) == [bare, alone, bare]


def test_an_adapter_of_zeros_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """Peft's adapters begin with B of zeros: such a one gives the bare model's bits."""
    model = model_of(folder)
    given = {
        name: (shape, array("f", [0.0] * len(n)) if "lora_B" in name else n) for name, (shape, n) in tensors().items()
    }
    _rust.AdapterFile.open(model, write_adapter(tmp_path / "zeros", given=given)).load(model, 13)
    bare, zeros = logits(model, [(0, TOKENS), (13, TOKENS)])
    assert zeros == bare


def test_a_gguf_adapter_is_the_same_as_pefts(folder: Path, tmp_path: Path) -> None:
    """The file that llama.cpp's converter makes of an adapter, rows of heads reordered, gives the same bits."""
    model = model_of(folder)
    _rust.AdapterFile.open(model, write_gguf_adapter(tmp_path / "a.gguf", tensors(1))).load(model, 13)
    peft, gguf = logits(model, [(FIRST, TOKENS), (13, TOKENS)])
    assert gguf == peft


def test_an_adapter_of_a_wider_layer_is_its_product_added_to_the_weights(tmp_path: Path) -> None:
    """The last layers of Gemma 4 E2B are wider inside: one of them computes with the adapter as with merged weights."""
    whole, name, draw = gemma4_tensors("E2B"), "blk.8.ffn_down.weight", random.Random(4)
    (cols, rows), weights = whole[name]
    a, b = (array("f", (draw.gauss(0, 0.2) for _ in range(4 * count))) for count in (cols, rows))
    down = "base_model.model.model.layers.8.mlp.down_proj"
    given: dict[str, Tensor] = {f"{down}.lora_A.weight": ((4, cols), a), f"{down}.lora_B.weight": ((rows, 4), b)}
    columns = [a[col::cols] for col in range(cols)]
    products = (2 * sum(map(mul, b[4 * row : 4 * row + 4], column)) for row in range(rows) for column in columns)
    merged = array("f", map(add, weights, products))
    files = [
        write_gemma4(tmp_path / f"{at}.gguf", "E2B", one)
        for at, one in enumerate((whole, whole | {name: ((cols, rows), merged)}))
    ]
    models = [_rust.CpuModel.load(file, threads=1, kv_bytes=1 << 22, kv_type="f32") for file in files]
    _rust.AdapterFile.open(models[0], write_adapter(tmp_path / "adapter", given=given)).load(models[0], FIRST)
    (bare, found), (expected,) = logits(models[0], [(0, TOKENS), (FIRST, TOKENS)]), logits(models[1], [(0, TOKENS)])
    assert array("f", b"".join(found)) == pytest.approx(array("f", b"".join(expected)), abs=1e-3)
    assert array("f", b"".join(bare)) != pytest.approx(array("f", b"".join(expected)), abs=0.05)


def test_a_sequence_whose_adapter_is_gone_is_left_out(folder: Path) -> None:
    """It ends with the reason, and what is beside it is computed."""
    model = model_of(folder)
    info = model.info()
    pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
    for sequence, adapter_id in ((1, FIRST), (2, SECOND)):
        pool.add(sequence, TOKENS, adapter_id=adapter_id)
        pool.reserve(sequence, len(TOKENS))
    assert model.remove_adapter(FIRST)
    assert not model.remove_adapter(FIRST)
    _, _, errors, *_ = model.execute(pool, [1, 2], [40, 40], TOKENS * 2, num_outputs=[1, 1])
    assert errors == {0: "its adapter is not loaded any more"}
    assert pool.num_tokens(2) == 40


def test_what_it_takes_is_said_before_it_is_loaded(folder: Path) -> None:
    """Bytes of rank 4 in all matrices: A's rows in groups of sixteen, B's too, 32 bits each."""
    model = model_of(folder)
    opened = _rust.AdapterFile.open(model, folder / "first")
    sizes = [4 * (16 * cols + 4 * -(-rows // 16) * 16) for rows, cols in SHAPES.values()]
    assert (opened.bytes, opened.rank, opened.num_modules) == (2 * sum(sizes), 4, 14)
    assert opened.step_bytes(512) > opened.step_bytes(64) > 64 * 3 * 16 * 4
    wider = _rust.AdapterFile.open(model, folder / "second")
    assert wider.step_bytes(64) - opened.step_bytes(64) == 64 * 3 * 16 * 4, "rank 20: sixteen more numbers of three"


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    """Tensors of an adapter with some in another's place; double underscores are dots."""
    given: dict[str, Tensor | None] = dict(tensors(1))
    given |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def zeros(*shape: int) -> Tensor:
    return shape, array("f", bytes(4 * math.prod(shape)))


Q = "base_model__model__model__layers__0__self_attn__q_proj__"
FAULTS: dict[str, tuple[dict[str, Tensor] | None, dict[str, object], str]] = {
    "another kind": (None, {"peft_type": "IA3"}, 'peft_type is "IA3"; expected "LORA"'),
    "no kind": (None, {"peft_type": None}, 'peft_type is null; expected "LORA": other kinds of adapters are not added'),
    "an alpha in a table": (None, {"lora_alpha": {"q": 8}}, 'lora_alpha is {"q":8}; expected a number, such as 16'),
    "an alpha in words": (None, {"lora_alpha": math.inf}, "lora_alpha is Infinity; expected a number, such as 16"),
    "modules_to_save": (None, {"modules_to_save": ["lm_head"]}, '"modules_to_save" is ["lm_head"], which is not impl'),
    "biases": (None, {"bias": "all"}, 'bias is "all": adapters of biases are not implemented'),
    "pissa": (None, {"init_lora_weights": "pissa"}, 'init_lora_weights is "pissa", which may have changed the model'),
    "a new field": (None, {"use_quantum": True}, '"use_quantum" is true, which is not implemented'),
    "no alpha": (None, {"lora_alpha": None}, "lora_alpha is null; expected a number"),
    "an infinite alpha": (None, {"lora_alpha": 1e300}, "lora_alpha is 1e+300; expected at most 3.4028235e38"),
    "another r": (None, {"r": 8}, '"layers.0.self_attn.q_proj" has rank 4, but r and rank_pattern say 8'),
    "another pattern": (None, {"r": 8, "rank_pattern": {"k_proj": 2}}, "has rank 4, but r and rank_pattern say 8, 2"),
    "r in words": (None, {"r": "four"}, 'r or rank_pattern has "four"; expected a whole number'),
    "a list of ranks": (None, {"rank_pattern": [4]}, "rank_pattern is no table of numbers"),
    "a pattern": (None, {"alpha_pattern": {".*": 1}}, "expected the ends of modules' names, not patterns"),
    "no truth": (None, {"use_rslora": "yes"}, 'use_rslora is "yes"; expected true or false'),
    "no B": (changed(**{f"{Q}lora_B__weight": None}), {}, "has no lora_B; the file is incomplete"),
    "no A": (changed(**{f"{Q}lora_A__weight": None}), {}, "has no lora_A; the file is incomplete"),
    "no magnitude": (None, {"use_dora": True}, "has no lora_magnitude_vector, which use_dora asks for"),
    "a magnitude": (tensors(1, is_dora=True), {}, "but use_dora is false"),
    "another size": (changed(**{f"{Q}lora_A__weight": zeros(4, 32)}), {}, "is 4 x 32; the model's matrix needs 4 x 64"),
    "another rank": (changed(**{f"{Q}lora_B__weight": zeros(64, 5)}), {}, "is 64 x 5; the model's matrix needs 64 x 4"),
    "a huge rank": (
        changed(**{f"{Q}lora_A__weight": zeros(600, 64), f"{Q}lora_B__weight": zeros(64, 600)}),
        {},
        "has rank 600; expected 1 to 512",
    ),
    "three dimensions": (changed(**{f"{Q}lora_A__weight": zeros(1, 4, 64)}), {}, "is 1 x 4 x 64; the model's matrix"),
    "not finite": (changed(**{f"{Q}lora_B__weight": ((64, 4), array("f", [math.nan] * 256))}), {}, "not finite"),
    "another layer": (
        changed(base_model__model__model__layers__9__self_attn__q_proj__lora_A__weight=zeros(4, 64)),
        {},
        '"layers.9.self_attn.q_proj": this model has no such matrix',
    ),
    "the output": (
        changed(base_model__model__lm_head__lora_A__weight=zeros(4, 64)),
        {},
        "adapters of embeddings and of output matrices are not implemented",
    ),
    "a whole matrix": (changed(base_model__model__lm_head__weight=zeros(4, 64)), {}, "of output matrices are not"),
    "experts": (
        changed(base_model__model__model__layers__0__mlp__experts__0__up_proj__lora_A__weight=zeros(4, 64)),
        {},
        "adapters of experts are not implemented",
    ),
    "a foreign name": (changed(nonsense=zeros(1)), {}, '"nonsense": expected tensors of LoRA or DoRA alone'),
    "nothing": ({}, {}, "it adds to nothing: it has no tensors"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_an_adapter_of_the_model_is_refused_by_name(fault: str, folder: Path, tmp_path: Path) -> None:
    """One line that names the file and what is wrong with it; nothing is loaded."""
    given, config, expected = FAULTS[fault]
    model = model_of(folder)
    path = write_adapter(tmp_path / "adapter", 1, given=given, config=config)
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.AdapterFile.open(model, path).load(model, 13)
    text = str(caught.value)
    assert expected in text
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 500
    assert not model.remove_adapter(13)


@pytest.mark.parametrize("matrix", ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"])
def test_latent_attention_takes_no_adapter(matrix: str, latent: _rust.CpuModel, tmp_path: Path) -> None:
    """The matrices of DeepSeek's attention are refused by name: its projections are others than adapters add to."""
    name = f"base_model.model.model.layers.0.self_attn.{matrix}"
    given = {f"{name}.lora_A.weight": zeros(4, 64), f"{name}.lora_B.weight": zeros(64, 4)}
    with pytest.raises(_rust.ModelFileError, match=rf"layers.0.self_attn.{matrix}\": this model has no such matrix"):
        _rust.AdapterFile.open(latent, write_adapter(tmp_path / "adapter", given=given))


def test_an_adapters_file_is_described_without_its_model(tmp_path: Path) -> None:
    """Method, largest rank, targets and bytes, of a folder and of a GGUF file; what cannot be read says why."""
    some = ("self_attn.q_proj", "mlp.up_proj")
    given = tensors(2, rank=3, matrices=some)
    num_bytes = sum(4 * len(numbers) for _, numbers in given.values())
    folder = write_adapter(tmp_path / "folder", given=given, config={"r": 3})
    expected = {"rank": 3, "targets": ["q_proj", "up_proj"], "tensor_bytes": num_bytes}
    assert _rust.describe_adapter(folder) == {"method": "LoRA", **expected}
    write_adapter(folder, given=given, config={"r": 3, "use_rslora": True})
    assert _rust.describe_adapter(folder) == {"method": "rsLoRA", **expected}
    write_adapter(folder, rank=5, is_dora=True)
    assert _rust.describe_adapter(folder)["method"] == "DoRA"
    gguf = _rust.describe_adapter(write_gguf_adapter(tmp_path / "a.gguf", given))
    assert gguf == {"method": "LoRA", **expected, "targets": ["attn_q", "ffn_up"]}
    with pytest.raises(_rust.ModelFileError, match="cannot find the file"):
        _rust.describe_adapter(tmp_path / "none")


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    """Cut, of other kinds, or absent: one line each."""
    model = model_of(folder)
    good = write_adapter(tmp_path / "adapter", 1)
    weights, settings = good / "adapter_model.safetensors", good / "adapter_config.json"
    whole = weights.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = next(iter(header))
    for content in (
        b"",
        whole[:100],
        whole[:-4],
        (1 << 62).to_bytes(8, "little") + whole[8:],
        whole.replace(b'"F32"', b'"F31"', 1),
        whole.replace(json.dumps(header[name]["data_offsets"]).encode(), b"[0, 9]", 1),
    ):
        weights.write_bytes(content)
        with pytest.raises(_rust.ModelFileError, match="adapter"):
            _rust.AdapterFile.open(model, good)
    weights.write_bytes(whole)
    for text in ("", "[]", "{}", '{"peft_type": 3}', "{" * 100_000):
        settings.write_text(text)
        with pytest.raises(_rust.ModelFileError, match="adapter_config"):
            _rust.AdapterFile.open(model, good)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, expected in (
        (tmp_path / "absent", "cannot"),
        (tmp_path, "adapter_config.json"),
        (folder / "tiny.gguf", "is it a model.s file"),
        (settings, "GGUF"),
        (pipe, "not an adapter: expected a folder that peft saved, or a GGUF file, got something that is neither"),
    ):
        with pytest.raises(_rust.ModelFileError, match=expected):
            _rust.AdapterFile.open(model, path)


def test_names_are_a_models_and_an_adapters() -> None:
    """`MODEL:NAME` where there is such an adapter, of all models or of that one; else the name of a model."""
    adapters = {"pirate": "a", "other:8b:poet": "b"}
    assert split_name("smollm2:135m:pirate", adapters) == ("smollm2:135m", ("pirate",))
    assert split_name("other:8b:poet", adapters) == ("other:8b", ("other:8b:poet",))
    assert split_name("smollm2:135m", adapters) == ("smollm2:135m", ())
    assert split_name("smollm2:135m:poet", adapters) == ("smollm2:135m:poet", ())
    assert split_name(":pirate", adapters) == (":pirate", ())
    names = names_of(["smollm2:135m", "other:8b"], adapters)
    assert names == ["smollm2:135m:pirate", "other:8b:pirate", "other:8b:poet"]
