"""Which attention backend a model gets: the settings' word, else the quickest that a trial finds right."""

from __future__ import annotations

import dataclasses
import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paged_attention import Heads, make_inputs
from support.reference_decoder import write_family

from pyagent.assembly import make_host
from pyagent.core.errors import ConfigError, PluginError
from pyagent.core.runners.attention import (
    AUTO_ATTENTION,
    Attend,
    AttentionBackend,
    AttentionChoice,
    AttentionShape,
)
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.runners.choice import pick_attention
from pyagent.infrastructure.engine.runners.torch.attention import plain, sdpa
from pyagent.infrastructure.engine.runners.torch.attention.choice import choose_attention, quickest, quickest_right
from pyagent.infrastructure.engine.runners.torch.attention.cpu import CpuAttend
from pyagent.infrastructure.engine.runners.torch.attention.rust import RustAttend
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial
from pyagent.infrastructure.engine.runners.torch.attention_backends import BACKENDS, FlexAttention
from pyagent.infrastructure.engine.runners.torch.device import target_of
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.runner import needs_of
from pyagent.plugin import hookimpl

pytestmark = pytest.mark.oracle

BUILT_IN = [backend for backend in BACKENDS if backend.name not in {"flashinfer", "flash_attn"}]
"""Those that need no package; `test_attention_packages.py` has the others."""


@pytest.fixture
def trial(tmp_path: Path) -> AttentionTrial:
    return trial_of(tmp_path, "qwen3")


def trial_of(folder: Path, family: str, kv_dtype: Any = "f32") -> AttentionTrial:
    write_family(folder, family)
    config = open_model(folder, {}).config
    target = target_of(RunnerOptions(kv_dtype=kv_dtype, dtype="f32"))
    return AttentionTrial.of(config, ModelPart.of(config, Shard()), target)


def scaled(by: float) -> Attend:
    return lambda *arguments: by * plain.attend(*arguments)


@pytest.mark.parametrize("backend", BUILT_IN, ids=lambda backend: backend.name)
@pytest.mark.parametrize(("family", "kv_dtype"), [("qwen3", "fp8"), ("gemma2", "f32")])
def test_backends_pass_the_trial_where_they_can_run(
    family: str, kv_dtype: Any, backend: AttentionBackend, tmp_path: Path
) -> None:
    """With windows, softcap and FP8 keys too, all that say they can compute a model's attention follow the formula."""
    trial = trial_of(tmp_path, family, kv_dtype)
    if (reason := backend.unavailable_reason(trial.shape)) is not None:
        assert (backend.name, family) in {("sdpa", "gemma2"), ("rust", "gemma2"), ("rust", "qwen3")}
        assert ("softcap" if family == "gemma2" else "float32") in reason
        return
    assert trial.fault(backend.open(trial.shape)) is None


@pytest.mark.parametrize("backend", BUILT_IN, ids=lambda backend: backend.name)
def test_backends_that_say_so_take_sinks(backend: AttentionBackend, trial: AttentionTrial) -> None:
    """They pass the trial with sinks; the others are never asked, and named in the settings refused by name."""
    with_sinks = dataclasses.replace(trial, shape=dataclasses.replace(trial.shape, has_sinks=True))
    takes_sinks = backend.name in {"triton", "sdpa", "torch", "flex"}
    if takes_sinks and backend.unavailable_reason(with_sinks.shape) is None:
        assert with_sinks.fault(backend.open(with_sinks.shape)) is None
    if not takes_sinks:
        choice = AttentionChoice((backend,), is_auto=False)
        with pytest.raises(ConfigError, match=f"{backend.name}, which cannot be used here: .* has sinks"):
            choose_attention(choice, with_sinks)
    if backend.name == "sdpa":  # the trial notices where they are left out
        assert "is wrong by" in str(with_sinks.fault(lambda *told: sdpa.attend(*told[:6])))


def test_plugins_backends_are_asked_for_sinks_where_they_take_them(trial: AttentionTrial) -> None:
    """One that does not say so is refused by its name, and one that says so is taken."""
    with_sinks = dataclasses.replace(trial, shape=dataclasses.replace(trial.shape, has_sinks=True))
    with pytest.raises(ConfigError, match=r"mine, which cannot be used here: .* has sinks"):
        choose_attention(choice_with(Brought(scaled(1.0)), "mine"), with_sinks)
    assert choose_attention(choice_with(BroughtWithSinks(scaled(1.0)), "mine"), with_sinks).name == "mine"


def test_trial_tells_what_is_wrong(trial: AttentionTrial) -> None:
    """Numbers off by a hundredth, no numbers, and errors are told with the batch or the error's first line."""
    assert str(trial.fault(scaled(1.01))) == "attention with window None, short, is wrong by 1.0e-02"
    assert "wrong by nan" in str(trial.fault(scaled(torch.nan)))

    def broken(*arguments: Any) -> None:
        raise RuntimeError("failed to find a C compiler\nset CC")

    assert trial.fault(broken) == "RuntimeError: failed to find a C compiler"


def test_trial_takes_time_of_decode_and_prefill(trial: AttentionTrial) -> None:
    """Both are measured, over sequences that share no page."""
    assert min(trial.seconds(sdpa.attend)) > 0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"a": (1.0, 10.0), "b": (2.0, 9.0)}, "a"),  # half the time to decode outweighs a ninth more to prefill
        ({"a": (1.0, 10.0), "b": (1.1, 5.0)}, "b"),
        ({"a": (3.0, 3.0)}, "a"),
    ],
)
def test_quickest_weighs_decode_and_prefill_alike(seconds: dict[str, tuple[float, ...]], expected: str) -> None:
    """Times count as multiples of the best of their kind: a prompt's are not more because they are longer."""
    assert quickest(seconds) == expected


def test_quickest_that_is_right_is_taken(trial: AttentionTrial, caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong is left out however quick it is, and so is what fails over a larger batch; the log says why."""

    def slow(*arguments: Any) -> Any:
        time.sleep(0.1)
        return sdpa.attend(*arguments)

    def small(q: torch.Tensor, *arguments: Any) -> Any:
        if len(q) > 1000:
            raise RuntimeError("out of memory\nof 80 GB")
        return sdpa.attend(q, *arguments)

    zeros = torch.zeros_like
    attends = {"zeros": lambda q, *_: zeros(q), "small": small, "slow": slow, "sdpa": sdpa.attend}
    assert quickest_right(attends.items(), trial).attend is sdpa.attend
    assert "not by zeros, which may be slower: attention with window None, short, is wrong by 1.0e+00" in caplog.text
    assert "not by small, which may be slower: RuntimeError: out of memory" in caplog.text
    assert quickest_right([("small", small)], trial).attend is plain.attend


class Brought:
    """A plugin whose backend is what it is given."""

    def __init__(self, opened: object, reason: object = None) -> None:
        self.opened = opened
        self.reason = reason

    @hookimpl
    def pyagent_register_attention_backends(self) -> list[Any]:
        return [self]

    name = "mine"

    def unavailable_reason(self, shape: AttentionShape) -> Any:
        if isinstance(self.reason, Exception):
            raise self.reason
        return self.reason

    def open(self, shape: AttentionShape) -> Any:
        return self.opened


class BroughtWithSinks(Brought):
    """One whose backend says that it takes sinks."""

    takes_sinks = True


def choice_with(plugin: Brought, name: str) -> AttentionChoice:
    host = make_host(Settings())
    host.register(plugin, name="theirs")
    return pick_attention(name, host.attention_backends())


def test_a_plugins_backend_is_taken_where_it_is_named(trial: AttentionTrial) -> None:
    """A backend may compute something else than the formula, as its user wants: a name is not put on trial."""
    attend = scaled(2.0)
    assert choose_attention(choice_with(Brought(attend), "mine"), trial).attend is attend


def test_auto_takes_no_plugins_backend_without_a_gpu(trial: AttentionTrial) -> None:
    """Nothing is measured on a CPU: the Rust core's attention is taken there."""
    assert isinstance(choose_attention(choice_with(Brought(scaled(2.0)), "auto"), trial).attend, RustAttend)


def test_attention_that_is_wrong_is_passed_over_without_a_gpu(
    trial: AttentionTrial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the Rust core's kernel is found wrong, the next is taken, and the log says why."""
    monkeypatch.setattr(RustAttend, "__call__", lambda _, q, *__: torch.zeros_like(q))
    assert isinstance(choose_attention(AUTO_ATTENTION, trial).attend, CpuAttend)
    assert "attention is not by rust" in caplog.text


@pytest.mark.parametrize(
    ("plugin", "error", "said"),
    [
        (
            Brought(None, "no such chip"),
            ConfigError,
            "engine.attention is mine, which cannot be used here: no such chip",
        ),
        (Brought(None, OSError("gone")), ConfigError, "plugin 'theirs' failed to say .* OSError: gone"),
        (Brought(None, 7), ConfigError, "it gave 7 as the reason"),
        (Brought("attend"), PluginError, "plugin 'theirs': its attention backend 'mine' opened as 'attend'"),
    ],
)
def test_backend_that_cannot_be_used_is_named(
    plugin: Brought, error: type[Exception], said: str, trial: AttentionTrial
) -> None:
    """One that says no, fails to say, or opens as no function, ends the load with its name and its plugin's."""
    with pytest.raises(error, match=said):
        choose_attention(choice_with(plugin, "mine"), trial)


def sinks(head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (key < 4) | (query - key < 20)


@pytest.mark.parametrize("window", [None, 40])
def test_flex_attention_follows_the_users_mask(window: int | None) -> None:
    """A query sees what the mask shows, of its own sequence, up to itself, within the window; NaN elsewhere not."""
    num_queries, num_tokens = [1, 7, 1, 40], [50, 90, 3, 40]
    q, cache, batch = make_inputs(num_queries, num_tokens, Heads(4, 2, 32), window=window)
    attend = FlexAttention("sinks", sinks).open(
        AttentionShape("cpu", "f32", "f32", 4, 2, 32, frozenset({window}), None)
    )
    attend(q, cache, batch, 0.2, 2, None)  # a layer of another window, in the same step
    result = attend(q, cache, batch, 0.2, window, None)
    starts = batch.query_starts.tolist()
    for row, (start, length, new) in enumerate(zip(starts[:-1], num_tokens, num_queries, strict=True)):
        keys, values = (rows.flatten(0, 1)[:length].double() for rows in cache.read(batch.tables[row]))
        at, of = torch.arange(length - new, length)[:, None], torch.arange(length)
        is_seen = sinks(at, at, of) & (of <= at) & (at - of < (window or length))
        scores = torch.einsum("qhgd,khd->hgqk", q[start : start + new].double().unflatten(1, (2, 2)), keys) * 0.2
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        expected = torch.einsum("hgqk,khd->qhgd", weights, values.nan_to_num()).flatten(1, 2)
        torch.testing.assert_close(result[start : start + new].double(), expected, atol=1e-5, rtol=0)


def test_windows_of_one_step_do_not_share_what_they_see() -> None:
    """Layers of different windows compute the same step by turns; each sees its own keys."""
    q, cache, batch = make_inputs([1, 1, 1], [90, 41, 17], Heads(4, 2, 16))
    attend = CpuAttend()
    for window in (None, 20, None, 33):
        expected = plain.attend(q, cache, batch, 0.25, window, None)
        torch.testing.assert_close(attend(q, cache, batch, 0.25, window, None), expected)


@pytest.mark.parametrize(
    ("name", "is_invariant", "said"),
    [
        ("flashinfer", False, "cannot be used here: flashinfer-python is not installed"),
        ("flashinfer", True, "no form for engine.batch_invariant"),
        ("flex", True, "no form for engine.batch_invariant; set it to auto, triton or torch"),
        ("flex", False, None),
        ("torch", True, None),
        ("auto", True, None),
    ],
)
def test_what_loading_would_refuse_is_said_of_the_estimate(
    name: str, is_invariant: bool, said: str | None, tmp_path: Path
) -> None:
    """`pyagent doctor` asks for the estimate: a backend that loading would refuse is named there."""
    if name == "flashinfer" and find_spec("flashinfer") is not None:
        pytest.skip("FlashInfer is installed")
    write_family(tmp_path, "qwen3")
    attention = pick_attention(name, {backend.name: backend for backend in BACKENDS})
    options = RunnerOptions(attention=attention, batch_invariant=is_invariant, dtype="f32")
    if said is None:
        assert needs_of(tmp_path, options, LargestStep(16, 2)).weight_bytes > 0
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        needs_of(tmp_path, options, LargestStep(16, 2))


def test_a_plugins_backend_is_refused_for_ranks_before_they_start(tmp_path: Path) -> None:
    """The processes of other ranks have no plugins: that is said of the estimate too."""
    write_family(tmp_path, "qwen3")
    options = RunnerOptions(attention=choice_with(Brought(scaled(1.0)), "mine"), tensor_parallel_size=2, dtype="f32")
    with pytest.raises(ConfigError, match="which the processes of other ranks do not have"):
        needs_of(tmp_path, options, LargestStep(16, 2))
