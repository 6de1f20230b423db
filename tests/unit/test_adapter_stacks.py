"""Several adapters of one request: how they are named, that they add up, and which do not."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from support.tiny_adapter import Tensor, tensors, write_adapter, write_gguf_adapter
from support.tiny_model import write_tiny_model
from unit.test_adapters import TOKENS, logits

from pyagent import _rust
from pyagent.core.adapter_stacks import is_stack, stack_fault
from pyagent.core.errors import RequestError
from pyagent.core.messages import ModelInfo
from pyagent.infrastructure.engine.models.adapter_digest import adapter_id_of, stack_id_of
from pyagent.infrastructure.engine.models.adapter_names import split_name
from pyagent.infrastructure.models.names import find_model

ATTENTION, MLP = ("self_attn.q_proj", "self_attn.k_proj"), ("mlp.up_proj", "mlp.down_proj")
KNOWN = ("m:8b", "m:8b:a", "m:8b:b", "c+:x")


def beside(*every: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the adapter whose factors are those of all: rows of A below each other, of B beside each other."""
    found: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for given in every for name in given):
        parts = [given[name] for given in every if name in given]
        rows, cols = (sum(shape[at] for shape, _ in parts) for at in (0, 1))
        if "lora_A" in name:
            found[name] = (rows, parts[0][0][1]), array("f", (one for _, numbers in parts for one in numbers))
            continue
        numbers = array("f")
        for row in range(parts[0][0][0]):
            for (_, width), of_part in parts:
                numbers += of_part[row * width : (row + 1) * width]
        found[name] = (parts[0][0][0], cols), numbers
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and adapters for it of all matrices, of attention, and of the rest; all are scaled by 2."""
    folder = tmp_path_factory.mktemp("stacks")
    write_tiny_model(folder / "tiny.gguf")
    given = {"all": tensors(1), "some": tensors(2, rank=6, matrices=ATTENTION), "rest": tensors(3, matrices=MLP)}
    for name, alpha in (("all", 8), ("some", 12), ("rest", 8)):
        config = {"r": alpha // 2, "lora_alpha": alpha}
        write_adapter(folder / name, given=given[name], config=config)
    write_gguf_adapter(folder / "some.gguf", given["some"], 12.0)
    merged = beside(given["all"], given["some"])
    patterns = {"alpha_pattern": dict.fromkeys(("q_proj", "k_proj"), 20), "rank_pattern": {"q_proj": 10}}
    write_adapter(folder / "by hand", given=merged, config={"r": 4, "lora_alpha": 8, **patterns})
    write_adapter(
        folder / "disjoint",
        given=given["some"] | given["rest"],
        config={"r": 6, "rank_pattern": {"x": 4}} | {"lora_alpha": 12, "alpha_pattern": {"up_proj": 8, "down_proj": 8}},
    )
    return folder


def model_with(folder: Path, *stacks: tuple[str, ...]) -> _rust.CpuModel:
    """Return the model with stacks of adapters under 1 and so on."""
    model = _rust.CpuModel.load(folder / "tiny.gguf", threads=2, kv_bytes=1 << 22, kv_type="f32")
    for adapter_id, names in enumerate(stacks, 1):
        _rust.AdapterFile.open(model, *(folder / name for name in names)).load(model, adapter_id)
    return model


def test_several_are_the_adapter_whose_factors_lie_beside_each_other(folder: Path) -> None:
    """Bit for bit, with matrices that both, one, or none adds to, from folders and GGUF files; so are its bytes."""
    model = model_with(
        folder,
        ("all", "some"),
        ("by hand",),
        ("all", "some.gguf"),
        ("some", "rest"),
        ("disjoint",),
    )
    stacked, by_hand, of_gguf, apart, disjoint = logits(model, [(place, TOKENS) for place in range(1, 6)])
    assert stacked == by_hand == of_gguf
    assert apart == disjoint
    assert apart != stacked
    pair, alone = (
        _rust.AdapterFile.open(model, *(folder / one for one in names)) for names in (("all", "some"), ("by hand",))
    )
    assert (pair.bytes, pair.rank, pair.num_modules) == (alone.bytes, 10, 14)
    assert pair.step_bytes(64) == alone.step_bytes(64)


def test_a_row_has_the_same_bits_beside_others(folder: Path) -> None:
    """The bare model, one adapter, another, and both, in one batch and alone, whole and in chunks."""
    model = model_with(folder, ("all",), ("some",), ("all", "some"))
    alone = [logits(model, [(place, TOKENS)])[0] for place in range(4)]
    assert len({b"".join(rows) for rows in alone}) == 4
    for step in (1 << 20, 7):
        found = logits(model, [(place, TOKENS) for place in (3, 0, 1, 2, 3)], step)
        assert found == [alone[place] for place in (3, 0, 1, 2, 3)]


def test_what_does_not_add_up_is_refused_before_memory_is_taken(folder: Path, tmp_path: Path) -> None:
    """DoRA beside another, on either side; ranks of more together than one may have."""
    model = model_with(folder)
    dora = write_adapter(tmp_path / "dora", is_dora=True)
    assert _rust.AdapterFile.open(model, dora).is_dora
    for paths in ((folder / "all", dora), (dora, folder / "all")):
        with pytest.raises(_rust.ModelFileError, match="dora: DoRA resizes what other adapters add"):
            _rust.AdapterFile.open(model, *paths)
    wide = [
        write_adapter(tmp_path / str(rank), given=tensors(1, rank=rank, matrices=("mlp.up_proj",)), config={"r": rank})
        for rank in (256, 257)
    ]
    assert _rust.AdapterFile.open(model, wide[0], wide[0]).rank == 512
    with pytest.raises(_rust.ModelFileError, match="together the adapters have rank 513; expected at most 512"):
        _rust.AdapterFile.open(model, *wide)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("m:8b:a+b", ""),
        ("m:8b:b+a", ""),
        ("m:8b:a", None),
        ("m:8b", None),
        ("c+:x", None),
        ("other:a+b", None),
        ("a+b", None),
        ("", None),
        ("m:8b:a+", "a name of an adapter is empty in 'a+'; expected names with a '+' between them"),
        ("m:8b:+", "a name of an adapter is empty in '+'"),
        ("m:8b:a++b", "a name of an adapter is empty in 'a++b'"),
        ("m:8b:a+a", "the adapter 'a' is named twice"),
        ("m:8b:b+poet", "m:8b has no adapter 'poet'; it has a, b"),
        ("m:8b:a+" + "x" * 5000, f"m:8b has no adapter '{'x' * 200}'; it has a, b"),
        ("m:8b:" + "+".join("abcdefghi"), "9 adapters are named at once; expected at most 8"),
        ("m:8b:" + "+" * 1_000_000, "1000001 adapters are named at once"),
    ],
)
def test_a_name_of_several_says_what_is_wrong_with_it(name: str, fault: str | None) -> None:
    """Each part is an adapter of the model that is known, once; what is no such name is left to others."""
    found = stack_fault(name, KNOWN)
    assert found == fault or (fault and found and found.startswith(fault))
    assert is_stack(name, KNOWN) is (fault == "")


def test_names_of_several_are_split_in_one_order() -> None:
    """Keys come in the order of the adapters' own names; what is not right in a part is no name of adapters."""
    adapters = {"z": "1", "m:8b:a": "2", "m+:8b:b": "3"}
    assert split_name("m:8b:z+a", adapters) == split_name("m:8b:a+z", adapters) == ("m:8b", ("m:8b:a", "z"))
    assert split_name("m+:8b:z+b", adapters) == ("m+:8b", ("m+:8b:b", "z"))
    for name in ("m:8b:z+b", "m:8b:z+z", "m:8b:z+", ":z+a", "m:8b:" + "+" * 9):
        assert split_name(name, adapters) == (name, ())


def test_a_list_of_models_has_what_its_adapters_are_together() -> None:
    """By the model's name, its link's, or its path; a fault is told, and a model's own name goes before."""
    models = [ModelInfo(id=f"m{end}", backend=f"native:m{end}", aliases=(f"/m.gguf{end}",)) for end in ("", ":a", ":b")]
    for name in ("m", "native:m", "/m.gguf"):
        found = find_model(f"{name}:b+a", models)
        assert found is not None
        assert (found.id, found.aliases) == ("m:b+a", ())
    with pytest.raises(RequestError, match="m has no adapter 'poet'; it has a, b"):
        find_model("m:a+poet", models)
    own = ModelInfo(id="m:a+b")
    assert find_model("m:a+b", [*models, own]) is own
    assert find_model("n:a+b", models) is None


def test_the_id_of_several_is_of_their_content_in_any_order(folder: Path) -> None:
    """Neither names nor order change it; it is another one than that of each, and than that of one of them twice."""
    one, two = folder / "all", folder / "some"
    paths, both = stack_id_of([one, two])
    assert stack_id_of([two, one]) == (paths, both)
    assert stack_id_of([one]) == ([one], adapter_id_of(one))
    ids = {both, adapter_id_of(one), adapter_id_of(two), stack_id_of([one, one])[1], stack_id_of([one, one, two])[1]}
    assert len(ids) == 5


def test_the_id_of_an_adapter_is_of_the_weights_that_are_read(tmp_path: Path) -> None:
    """Of each form of weights; of several beside each other the first counts, as the engine reads that alone."""
    (tmp_path / "adapter_config.json").write_text("{}")
    for name in ("adapter_model.bin", "adapter_model.tensors", "adapter_model.safetensors"):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        ids: list[int] = []
        for content in (b"one", b"two"):
            (tmp_path / name).write_bytes(content)
            ids.append(adapter_id_of(tmp_path))
            for path in before.keys() - {tmp_path / "adapter_config.json"}:
                path.write_bytes(content + b" of another form, which is not read")
            assert adapter_id_of(tmp_path) == ids[-1]
        assert ids[0] != ids[1]
