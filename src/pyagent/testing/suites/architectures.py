"""What every architecture of the torch runner must do. Without torch, what its shape says of a configuration.

    class TestGranite(ArchitectureConformance):
        config = {"model_type": "granite", "vocab_size": 320, ...}

        def make(self):
            return Granite()

The configuration is of a model that is small: its weights are made up. What the numbers should be, only a model of the
kind can tell: compare with the field's library.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, cast

import pytest

from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import Architecture, ModelShape, Module, Network, Tensor
from pyagent.testing.suites.checks import check_host_takes

_NUM_TOKENS = 7


class ArchitectureConformance:
    """Derive from it, and define `make` and `config`, as a `config.json` has it."""

    config: ClassVar[Mapping[str, Any]] = {}  # Any: as of `Architecture.shape`

    def make(self) -> Architecture:
        """Return the architecture."""
        raise NotImplementedError

    def test_host_takes_the_architecture(self) -> None:
        """It has a name, that of its configuration's `model_type`, `shape` and `load`."""
        architecture = self.make()
        check_host_takes("architectures", [architecture])
        assert architecture.name == self.config.get("model_type"), f"its name is {architecture.name!r}"

    def test_shape_is_of_a_model(self) -> None:
        """Sizes are positive, KV heads divide the heads, windows are of each layer, a head is turned no further."""
        shape = self._shape()
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size")
        for name in (*sizes, "context_length"):
            value = cast("object", getattr(shape, name))
            assert isinstance(value, int), f"`{name}` is {value!r}"
            assert value > 0, f"`{name}` is {value!r}"
        assert shape.num_heads % shape.num_kv_heads == 0, f"{shape.num_heads} heads, {shape.num_kv_heads} KV heads"
        assert len(shape.windows) in {0, shape.num_layers}, f"{len(shape.windows)} windows, {shape.num_layers} layers"
        num_functions = len(shape.score_functions)
        assert num_functions in {0, shape.num_layers}, f"{num_functions} score functions, {shape.num_layers} layers"
        assert 2 * len(shape.rope_frequencies) <= max(2, shape.head_dim), "more is turned than a head has"
        assert shape.attention_scale > 0, f"`attention_scale` is {shape.attention_scale}"
        assert shape.architecture, "`architecture` is empty"

    def test_shape_needs_no_torch(self) -> None:
        """`shape` is asked before a model is loaded, for what it will take: it imports no torch."""
        had = "torch" in sys.modules
        self._shape()
        assert ("torch" in sys.modules) == had, "`shape` imports torch"

    def test_missing_field_is_the_models_fault(self) -> None:
        """Without a field that it needs, `shape` raises a `KeyError` of that field, or a `ModelError`."""
        for field in self.config:
            config = {name: value for name, value in self.config.items() if name != field}
            try:
                self.make().shape(config)
            except Exception as error:
                if not isinstance(error, KeyError | ModelError) or field not in str(error):
                    raise AssertionError(f"without {field!r} it fails: {type(error).__name__}: {error}") from error

    def test_each_layer_attends_once_in_order(self) -> None:
        """A forward pass asks for attention once for each layer, from the first on, with heads of the shape."""
        shape, step = self._shape(), self._step(_NUM_TOKENS)
        self._network().hidden(step)
        assert step.layers == list(range(shape.num_layers)), f"it attends in the layers {step.layers}"

    def test_outputs_have_the_shapes_sizes(self) -> None:
        """`hidden` gives [T, hidden] and `logits` [m, vocabulary] of the rows it is given, none of them NaN."""
        shape, network = self._shape(), self._network()
        hidden = network.hidden(self._step(_NUM_TOKENS))
        assert tuple(hidden.shape) == (_NUM_TOKENS, shape.hidden_size), f"`hidden` gives {tuple(hidden.shape)}"
        logits = network.logits(hidden[-2:])
        assert tuple(logits.shape) == (2, shape.vocab_size), f"`logits` gives {tuple(logits.shape)}"
        assert bool(logits.isfinite().all()), "a logit is NaN, or infinite"

    def test_a_token_does_not_see_later_ones(self) -> None:
        """What a token gives is the same without those that come after it, and alone in its step's rows."""
        network = self._network()
        whole, part = (network.hidden(self._step(num)) for num in (_NUM_TOKENS, _NUM_TOKENS - 3))
        assert bool((whole[: len(part)] - part).abs().max() < 1e-4), "later tokens change earlier ones"
        rows, alone = network.logits(whole), network.logits(whole[2:3])
        assert bool((rows[2:3] - alone).abs().max() < 1e-4), "a row's logits depend on the rows beside it"

    def _shape(self) -> ModelShape:
        return self.make().shape(self.config)

    def _network(self) -> Network:
        return self.make().load(self.config, self._shape(), _Layers(_torch()))

    def _step(self, num_tokens: int) -> _Step:
        return _Step(_torch(), self._shape(), num_tokens)


def _torch() -> Any:  # Any: it may not be there where this is checked
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return cast("Any", import_module("torch"))


class _Layers:
    """Parts over made-up weights, as plainly as they can be computed."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def has(self, name: str) -> bool:
        """Return False: there is no bias, and no other tensor that a model may lack."""
        return not name.endswith("bias")

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return the same numbers for the same name."""
        seeded = self._torch.Generator().manual_seed(sum(name.encode()))
        return self._torch.randn(shape, generator=seeded) * 0.1

    def embedding(self, weight: Tensor) -> Module:
        """Look rows up."""
        return lambda ids: weight[ids.long()]

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Module:
        """Multiply, and add."""
        return lambda x: x @ weight.T + (0 if bias is None else bias)

    def rms_norm(self, name: str, size: int, epsilon: float) -> Module:
        """Divide by the root of the mean of squares."""
        weight = self.tensor(name, size)
        return lambda x: x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight

    def layer_norm(self, name: str, size: int, epsilon: float) -> Module:
        """Subtract the mean, and divide by the deviation."""
        weight = self.tensor(f"{name}.weight", size)
        return lambda x: self._torch.nn.functional.layer_norm(x, (size,), weight, None, epsilon)

    def activation(self, name: str) -> Module:
        """Return SiLU, whatever it is called: that the numbers are right is not looked at here."""
        return self._torch.nn.functional.silu


class _Step:
    """One sequence's tokens, with attention as its formula reads, and without positions."""

    def __init__(self, torch: Any, shape: ModelShape, num_tokens: int) -> None:
        self.tokens = torch.arange(num_tokens, dtype=torch.int32) % shape.vocab_size
        self.positions = torch.arange(num_tokens, dtype=torch.int32)
        self.layers: list[int] = []
        self._torch, self._shape = torch, shape

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return heads [T, Hq * D], each query seeing its own position and those before."""
        shape, num = self._shape, len(self.tokens)
        self.layers.append(layer)
        for name, found, heads in (
            ("q", q, shape.num_heads),
            ("k", k, shape.num_kv_heads),
            ("v", v, shape.num_kv_heads),
        ):
            assert tuple(found.shape) == (num, heads, shape.head_dim), (
                f"{name} of layer {layer} is {tuple(found.shape)}"
            )
        k, v = (each.repeat_interleave(shape.num_heads // shape.num_kv_heads, 1) for each in (k, v))
        scores = self._torch.einsum("qhd,khd->hqk", q, k) * shape.attention_scale
        hidden = self._torch.ones(num, num, dtype=self._torch.bool).triu(1)
        return self._torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -1e30).softmax(-1), v).flatten(1)
