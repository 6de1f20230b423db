"""What several families have: tensors around the layers, gated blocks, experts, rows of heads paired otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyagent.infrastructure.models.quantize.layouts.stored import Change, Columns, Made, Runs, Stored, ordered

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig


def size_of(config: Mapping[str, object], key: str, default: int = 0) -> int:
    """Return a number of `config.json`, which the engine has read, or what the family has where it says none."""
    value = config.get(key)
    return value if isinstance(value, int) else default


def number_of(config: Mapping[str, object], key: str) -> float:
    """Return a factor of `config.json`, or 1 where it says none."""
    value = config.get(key)
    return float(value) if isinstance(value, int | float) else 1.0


def embedding(stored: Stored, model: ModelConfig, name: str = "embed_tokens") -> Made:
    """Return the tensor of tokens' vectors."""
    return stored.whole("token_embd.weight", f"{stored.begin}{name}.weight", [model.hidden_size, model.vocab_size])


def ends(
    stored: Stored, model: ModelConfig, norm: str, change: Change | None = None, gguf: str = "output_norm"
) -> Iterator[Made]:
    """Yield what comes after the layers: a norm, and the output matrix where it is not the embedding."""
    hidden = model.hidden_size
    yield stored.whole(f"{gguf}.weight", f"{stored.begin}{norm}.weight", [hidden], change)
    if not model.is_output_tied:
        yield stored.whole("output.weight", "lm_head.weight", [hidden, model.vocab_size])


def linear(  # noqa: PLR0913 - where it lies, and what it is
    stored: Stored, gguf: str, own: str, dims: Sequence[int], *, runs: Runs | None = None, change: Change | None = None
) -> Iterator[Made]:
    """Yield a matrix or a norm, and its bias where there is one; `runs` are the rows in another order."""
    order = None if runs is None else [*runs]
    weight, bias = f"{own}.weight", f"{own}.bias"
    whole = stored.whole(f"{gguf}.weight", weight, dims, change)
    yield whole if order is None else stored.cut(whole.name, weight, order, dims)
    if stored.has(bias):
        yield stored.whole(f"{gguf}.bias", bias, dims[-1:], None if order is None else ordered(order, dims[-1]))


def gated(stored: Stored, block: str, begin: str, size: tuple[int, int], end: str = "") -> Iterator[Made]:
    """Yield a feed-forward block's gate, up and down; `size` is the width of the stream and inside."""
    for name, dims in {"gate": size, "up": size, "down": size[::-1]}.items():
        yield stored.whole(f"{block}{name}{end}.weight", f"{begin}{name}_proj.weight", dims)


def experts(stored: Stored, block: str, begin: str, dims: Mapping[str, Sequence[int]], num: int) -> Iterator[Made]:
    """Yield all experts' matrices of a layer, each with a tensor of its own in the folder or all in two.

    `dims` are those of `ffn_gate`, `ffn_up` and `ffn_down`, by whatever the folder calls them.
    """
    gguf = dict(zip(dims, ("ffn_gate", "ffn_up", "ffn_down"), strict=True))
    packed = f"{begin}gate_up_proj"
    if not stored.has(packed):
        for name, sizes in dims.items():
            names = [f"{begin}{number}.{name}.weight" for number in range(num)]
            yield stored.stacked(f"{block}{gguf[name]}_exps.weight", names, sizes)
        return
    gate, up, down = dims.values()
    rows = gate[1]
    for place, (name, sizes) in enumerate((("ffn_gate", gate), ("ffn_up", up))):
        runs = [((2 * number + place) * rows, rows) for number in range(num)]
        yield stored.cut(f"{block}{name}_exps.weight", packed, runs, [*sizes, num])
    yield stored.whole(f"{block}ffn_down_exps.weight", f"{begin}down_proj", [*down, num])


def turned(gguf: str, name: str, rows: int, columns: tuple[int, int, int], num: int) -> Made:
    """Return all experts' matrices, of which a folder has so many rows each, turned.

    `columns` are the first, how many, and every which of the folder's are the rows here.
    """
    first, count, step = columns
    parts = [Columns(name, expert * rows, rows, first, count, step) for expert in range(num)]
    return Made(gguf, [rows, count, num], parts)


def paired(heads: int, head_dim: int) -> list[tuple[int, int]]:
    """Return the rows of heads whose pairs are halves apart, in the order in which pairs are neighbours."""
    half = head_dim // 2
    places = [part * half + pair for pair in range(half) for part in range(2)]
    return [(head * head_dim + place, 1) for head in range(heads) for place in places]
