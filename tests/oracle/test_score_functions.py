"""Score functions of a plugin's architecture: what is added by distance is what transformers, or the formula, says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.installed import find_first, write_distribution
from support.torch_logits import compute, runner_of

from pyagent.core.config import load_settings
from pyagent.core.errors import ModelError, PluginError
from pyagent.core.runners.architecture import BroughtArchitecture
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory

pytestmark = pytest.mark.oracle

EXAMPLE = Path(__file__).parents[2] / "examples/pyagent-mpt/pyagent_mpt.py"
HEADS = 4
TOKENS = [(7 * place + place * place) % 325 for place in range(50)]
CLOSE = 3e-5
"""Of the largest logit: attention is sharp, and float32 differs from float64 by a third of it."""


def write_mpt(folder: Path) -> Any:
    """Write a random MPT by transformers, attention sharp; returns it."""
    import torch
    from transformers import MptConfig, MptForCausalLM

    torch.manual_seed(7)
    config = MptConfig(vocab_size=325, d_model=64, n_layers=3, n_heads=HEADS, max_seq_len=128)
    model = MptForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4).add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.fixture
def mpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, installed as a plugin and found by its entry point; as `replaced(changes)`, with another shape."""
    from pyagent.assembly import make_host

    find_first(monkeypatch, tmp_path)
    (tmp_path / "pyagent_mpt.py").write_text(EXAMPLE.read_text())
    write_distribution(tmp_path, "mpt", "mpt.architectures = pyagent_mpt")
    monkeypatch.delitem(import_module("sys").modules, "pyagent_mpt", raising=False)
    return make_host(load_settings(overrides={}).settings).architectures()["mpt"]


def changed(brought: BroughtArchitecture, **changes: Any) -> dict[str, BroughtArchitecture]:
    """The architecture, of which the shape differs so."""
    inner = brought.architecture
    other = SimpleNamespace(name="mpt", shape=lambda config: replace(inner.shape(config), **changes), load=inner.load)
    return {"mpt": BroughtArchitecture(other, brought.plugin)}


def worst_error(folder: Path, kinds: dict[str, BroughtArchitecture], expected: Any) -> float:
    """Return how far logits are from those expected, as a share of the largest: prefixes at once, and chunks."""
    import numpy as np

    runner = runner_of(folder, kinds)
    lengths = [1, 2, 9, 16, 17, 33, 50]
    rows = [*compute(runner, *((length, TOKENS[:length]) for length in lengths))]
    done = 0
    for chunk in (7, 1, 20, 22):
        rows.append(compute(runner, (100, TOKENS[done : done + chunk]))[0])
        done += chunk
        lengths.append(done)
    errors = np.abs(np.stack(rows) - expected[np.array(lengths) - 1])
    return float(errors.max() / np.abs(expected).max())


def test_alibi_of_an_installed_plugin_is_that_of_transformers(mpt: BroughtArchitecture, tmp_path: Path) -> None:
    """The example gives MPT's logits, each close to transformers', and without its function it does not."""
    import torch

    reference = write_mpt(tmp_path / "model")
    with torch.no_grad():
        expected = reference(torch.tensor([TOKENS])).logits[0].numpy()
    assert worst_error(tmp_path / "model", {"mpt": mpt}, expected) < CLOSE
    assert worst_error(tmp_path / "model", changed(mpt, score_functions=()), expected) > 100 * CLOSE


def t5_buckets(head: Any, distance: Any) -> Any:
    """As T5's: exact up to 8, then by logarithm, the last for all farther; made-up numbers for each head and bucket."""
    import numpy as np

    far = 8 + (np.log(np.maximum(distance, 8) / 8) / np.log(4) * 8).astype(int)
    bucket = np.where(distance < 8, distance, np.minimum(far, 15))
    return np.sin(1.7 * bucket + head)


def dilated(head: Any, distance: Any) -> Any:
    """Every `head + 1`-th key."""
    import numpy as np

    return np.where(distance % (head + 1) == 0, 0.0, -np.inf)


def decay(head: Any, distance: Any) -> Any:
    """The same of all heads: broadcast."""
    import numpy as np

    return -np.log1p(distance.astype(float))


@pytest.mark.parametrize("function", [t5_buckets, dilated, decay])
def test_any_function_of_distance_is_what_transformers_adds(
    function: Callable[[Any, Any], Any], mpt: BroughtArchitecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets, a mask, a decay in place of MPT's slopes, in transformers' attention too: logits are close."""
    import numpy as np
    import torch
    from transformers.models.mpt import modeling_mpt

    def bias(num_heads: int, length: int, *_: Any, **__: Any) -> torch.Tensor:
        distance = np.maximum(np.arange(length)[:, None] - np.arange(length), 0)
        return torch.tensor(np.stack([function(np.array(head), distance) for head in range(num_heads)])).float()

    reference = write_mpt(tmp_path / "model").double()
    monkeypatch.setattr(modeling_mpt, "build_mpt_alibi_tensor", bias)
    monkeypatch.setattr(type(reference.transformer), "build_mpt_alibi_tensor", lambda _, *told, **__: bias(*told[:2]))
    reference.transformer.config.max_seq_len = len(TOKENS)
    with torch.no_grad():
        expected = reference(torch.tensor([TOKENS])).logits[0].numpy()
    assert worst_error(tmp_path / "model", changed(mpt, score_functions=[function] * 3), expected) < CLOSE


def test_attention_in_parts_under_windows_is_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of a prompt go in parts of any size, behind a window, grouped heads: in float64 to 1e-6."""
    import numpy as np
    import torch

    from pyagent.infrastructure.engine.runners.torch.attention import scored
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache

    torch.manual_seed(3)
    cache = PagedCache(torch.randn(8, 16, 2, 8), torch.randn(8, 16, 2, 8))
    tables, num_queries, lengths = torch.tensor([[3, 0, 7, 1], [5, 2, 6, 4]]), [1, 40], [50, 61]
    starts = torch.tensor([0, 1, 41], dtype=torch.int32)
    batch = AttentionBatch(starts, torch.tensor(lengths, dtype=torch.int32), tables.int(), num_queries, lengths)
    q = torch.randn(41, 4, 8)
    table = np.float32(t5_buckets(np.arange(4)[:, None], np.arange(28)[None]))  # the last is for all that are farther
    for window, mask_numbers in ((None, 1 << 24), (None, 4 * 61 * 7), (9, 1), (33, 4 * 61 * 3)):
        monkeypatch.setattr(scored, "_MASK_NUMBERS", mask_numbers)
        found = scored.attend(q, cache, batch, 0.3, window, torch.tensor(table)).double().numpy()
        row = 0
        for pages, count, length in zip(tables, num_queries, lengths, strict=True):
            keys, values = (part[pages].flatten(0, 1).double().numpy() for part in (cache.keys, cache.values))
            for place in range(length - count, length):
                first = 0 if window is None else max(0, place + 1 - window)
                for head in range(4):
                    distances = np.minimum(place - np.arange(first, place + 1), 27)
                    scores = keys[first : place + 1, head // 2] @ q[row, head].double().numpy() * 0.3
                    weights = np.exp(scores + table[head, distances])
                    expected = weights @ values[first : place + 1, head // 2] / weights.sum()
                    assert np.abs(found[row, head] - expected).max() < 1e-5
                row += 1


def test_layers_have_the_tables_of_their_own_functions() -> None:
    """Each layer's table is what its function says of every head and distance; the same function is one table."""
    import numpy as np
    import torch

    from pyagent.infrastructure.engine.runners.torch.architectures.scores import score_tables

    told: Any = SimpleNamespace(
        score_functions=[decay, dilated, None, decay], num_heads=HEADS, num_layers=4, context_length=40
    )
    first, second, none, last = score_tables(told, torch.device("cpu"))
    assert none is None
    assert first is last
    for table, function in ((first, decay), (second, dilated)):
        assert table is not None
        for head in range(HEADS):
            assert np.array_equal(table[head].numpy(), function(np.array(head), np.arange(40)).astype(np.float32))


def test_tables_are_no_arrays_of_the_plugin() -> None:
    """What a function returned and keeps may change later, the table does not; of far numbers no warning is given."""
    import numpy as np
    import torch

    from pyagent.infrastructure.engine.runners.torch.architectures.scores import score_tables

    kept = np.zeros((HEADS, 40), dtype=np.float32)
    functions = [lambda head, distance: kept, lambda head, distance: distance * -1e300]
    told: Any = SimpleNamespace(score_functions=functions, num_heads=HEADS, num_layers=2, context_length=40)
    first, second = score_tables(told, torch.device("cpu"))
    kept[:] = 7
    assert first is not None
    assert second is not None
    assert not first.any()
    assert second[0, :2].tolist() == [0, -float("inf")]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda head, distance: distance * float("nan"), "layer 1 gives nan to head 0 at distance 0"),
        (lambda head, distance: 1.0 / (distance - 5 + head * 0), "layer 1 gives inf to head 0 at distance 5"),
        (lambda head, distance: head * distance - float("inf"), "layer 1 masks distance 0 of head 0"),
        (lambda head, distance: distance[:, :5] * 1.0, r"returned the shape \(1, 5\); expected \(4, 128\)"),
        (lambda head, distance: "far", "returned <U3 numbers"),
        (lambda head, distance: distance < 5, "returned bool numbers"),
        (lambda head, distance: 1 // 0, "failed to evaluate the score functions .*ZeroDivisionError"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_that_leave_no_score_are_refused(
    function: Callable[[Any, Any], Any], said: str, mpt: BroughtArchitecture, tmp_path: Path
) -> None:
    """NaN, infinity, a mask of the token itself, another shape, what is no number, a failure: the plugin is named."""
    write_mpt(tmp_path / "model")
    with pytest.raises(PluginError, match=f"plugin 'mpt'.*{said}"):
        runner_of(tmp_path / "model", changed(mpt, score_functions=[None, function, None]))


def test_tables_are_counted_and_bounded(mpt: BroughtArchitecture, tmp_path: Path) -> None:
    """One function of all layers is one table, and estimated; too long, too few, and a softcap beside are refused."""
    write_mpt(tmp_path / "model")

    def estimate(**changes: Any) -> int:
        options = RunnerOptions(dtype="f32", architectures=changed(mpt, **changes))
        return TorchRunnerFactory().estimate(tmp_path / "model", options, LargestStep(256, 8)).weight_bytes

    bare = estimate(score_functions=())
    assert estimate(score_functions=[decay] * 3) - bare == HEADS * 128 * 4
    assert estimate(score_functions=[decay, dilated, None]) - bare == 2 * HEADS * 128 * 4
    with pytest.raises(ModelError, match="2 score functions; expected one, or None, for each of 3 layers"):
        estimate(score_functions=[decay] * 2)
    with pytest.raises(ModelError, match="beside a softcap"):
        estimate(score_functions=[decay] * 3, attention_softcap=30.0)
    with pytest.raises(ModelError, match="have 536870912 numbers; expected at most 67108864"):
        estimate(score_functions=[decay] * 3, context_length=1 << 27)
