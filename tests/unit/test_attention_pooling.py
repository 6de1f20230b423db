"""Models that pool by attention: what stands around their texts, and refusals; `tests/oracle` has their numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.reference_decoder import write_family, write_safetensors
from support.tiny_encoder import LETTERS, write_encoder

from pyagent import _rust
from pyagent.core.errors import ContextOverflowError
from pyagent.infrastructure.engine.encoders.text_tokens import SECOND_TEXT, TextTokens
from pyagent.infrastructure.models.describe import describe_encoder

CLOSING = 7
FORM = {
    "architectures": ["CodeFuse_CGE_Large"],
    "embedding_method": "pma",
    "compress_dim": 10,
    "pma_num_heads": 2,
    "pma_ln": True,
    "pma_norm": False,
    "pma_norm_mode": "post_normal",
    "keep_max_layer": -1,
}


def test_a_token_closes_each_text_and_instructions_are_marked_off(tmp_path: Path) -> None:
    """NV-Embed's texts end with a token; what follows `Query:` is a pair's second text; a cut keeps the token."""
    path = write_encoder(tmp_path)
    tokens = TextTokens(path, 40, 60, closing=CLOSING, skips_instructions=True)
    plain = TextTokens(path, 60, 60)
    [bare, asked] = tokens.encode(["the cat", "Instruct: a b\nQuery: the cat"])
    assert bare == [*plain.encode(["the cat"])[0], CLOSING]
    ids = [token & ~SECOND_TEXT for token in asked]
    [before] = plain.encode(["Instruct: a b\nQuery:"])
    assert ids == [*plain.encode(["Instruct: a b\nQuery: the cat"])[0], CLOSING]
    marked = [bool(token & SECOND_TEXT) for token in asked]
    assert marked.index(True) == len(before) - 1  # the tokenizer's own last token stands behind the text
    assert marked == sorted(marked)
    [close] = tokens.encode(["Instruct: a b\nQuery:the cat"])
    assert [bool(token & SECOND_TEXT) for token in close] == marked
    assert tokens.encode(["a b\nInstruct: c\nQuery: d"])[0][-1] == CLOSING  # at the beginning alone
    with pytest.raises(ContextOverflowError, match="input 0 has 42 tokens, the model takes 40"):
        tokens.encode([" ".join([*LETTERS, *LETTERS[:13]])])
    [cut] = tokens.encode([" ".join(LETTERS * 2)], truncates=True)
    assert (len(cut), cut[-1]) == (40, CLOSING)


def write(folder: Path, **changes: object) -> Path:
    """A tiny Qwen 2 with a learned query, and changes to its configuration."""
    folder.mkdir()
    config, tensors = write_family(folder, "qwen2")
    hidden, draw = config["hidden_size"], random.Random(4)
    shapes = {
        "S": (1, 10),
        "mab.fc_q": (10, 10),
        "mab.fc_k": (10, hidden),
        "mab.fc_v": (10, hidden),
        "mab.fc_o": (10, 10),
    }
    named = {f"plm_model.{name}": rows for name, rows in tensors.items()}
    for name, (rows, cols) in shapes.items():
        matrix = [[draw.gauss(0, 0.3) for _ in range(cols)] for _ in range(rows)]
        named[f"mha_pma.{name}" + ("" if name == "S" else ".weight")] = matrix
        if name != "S":
            named[f"mha_pma.{name}.bias"] = [[0.1] * 10]
    for norm in ("ln0", "ln1"):
        named |= {f"mha_pma.mab.{norm}.weight": [[1.0] * 10], f"mha_pma.mab.{norm}.bias": [[0.0] * 10]}
    named |= changes.pop("tensors", {})  # type: ignore[operator]
    write_safetensors(folder, config | FORM | changes, named)
    return folder


def test_a_learned_query_is_told_and_what_differs_refused(tmp_path: Path) -> None:
    """The card names the pooling; layers, modes, shapes, steps and tensors that are not implemented are named."""
    card = describe_encoder(write(tmp_path / "m"))
    assert card is not None
    assert (card.task, card.pooling, card.num_dimensions) == ("embed", "attention", 10)
    model = _rust.EncoderModel.load(tmp_path / "m", threads=1)
    assert len(model.compute([[3, 4, 5]])) == 40
    wrong: list[tuple[dict[str, object], str]] = [
        ({"keep_max_layer": 1}, "'keep_max_layer' is 1"),
        ({"pma_norm_mode": "sideways"}, "'pma_norm_mode' is sideways"),
        ({"pma_norm_mode": "pre_normal"}, "'compress_dim' is 10, but its tokens are normalised"),
        ({"pma_num_heads": 3}, "'compress_dim' is 10 and 'pma_num_heads' 3"),
        ({"pma_ln": None}, "'pma_ln' must be true or false"),
        ({"compress_dim": 12}, "tensor 'mha_pma.S' is 1 x 10; expected 1 x 12"),
        ({"colour": 3}, "colour"),
        (
            {"tensors": {"mha_pma.mab.gate.weight": [[1.0]]}},
            "tensor 'mha_pma.mab.gate.weight', which is not implemented",
        ),
    ]
    for number, (changes, said) in enumerate(wrong):
        with pytest.raises(_rust.ModelFileError) as caught:
            _rust.EncoderModel.load(write(tmp_path / str(number), **changes), threads=1)
        assert said in str(caught.value)
    steps = [{"type": "m.Transformer"}, {"type": "m.Dense", "path": "2_Dense"}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(_rust.ModelFileError, match=r"the step 'm.Dense' is not implemented for a model that pools"):
        _rust.EncoderModel.load(tmp_path / "m", threads=1)


def test_a_batch_without_tokens_is_refused(tmp_path: Path) -> None:
    """A model for batches of no tokens would compute nothing."""
    with pytest.raises(ValueError, match="most_tokens is 0; expected 1 or more"):
        _rust.EncoderModel.load(write_encoder(tmp_path), threads=1, most_tokens=0)
