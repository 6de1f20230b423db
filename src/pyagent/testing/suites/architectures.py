"""What every architecture must do: one that describes a family on the CPU runner, one with a network with torch.

    class TestGranite(ArchitectureConformance):
        config = {"model_type": "granite", "vocab_size": 320, ...}

        def make(self):
            return Granite()

The configuration is of a model that is small: its weights are made up. Where the architecture describes a family,
`tensors` are those of a folder with that configuration, by name, each with its shape as safetensors has it. What the
numbers should be, only a model of the kind can tell: compare with the field's library. That a description and a network
of one architecture give the same is told here.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

import pytest

from pyagent.core.errors import ModelError, PyAgentError
from pyagent.core.runners.architecture import (
    Architecture,
    DescribedArchitecture,
    ModelShape,
    Module,
    Network,
    Tensor,
)
from pyagent.infrastructure.engine.runners.score_tables import LayerTables
from pyagent.testing.suites.checks import check_host_takes
from pyagent.testing.suites.made_up_folder import cpu_logits, made_up, write_folder

_NUM_TOKENS = 7
_NUM_DESCRIBED = 40
_CLOSE = 1e-4
"""Of the largest logit."""


class ArchitectureConformance:
    """Derive from it, and define `make` and `config`, as a `config.json` has it."""

    config: ClassVar[Mapping[str, Any]] = {}  # Any: as of `Architecture.shape`
    tensors: ClassVar[Mapping[str, Sequence[int]]] = {}

    def make(self) -> Architecture | DescribedArchitecture:
        """Return the architecture."""
        raise NotImplementedError

    def test_host_takes_the_architecture(self) -> None:
        """It has a name, that of its configuration's `model_type`, and `describe`, or `shape` and `load`."""
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
        """Without a field that it needs, it raises a `KeyError` of that field, or a `ModelError`."""
        made = self.make()
        asked = [getattr(made, name) for name in ("shape", "describe") if hasattr(made, name)]
        for field in self.config:
            config = {name: value for name, value in self.config.items() if name != field}
            for ask in asked:
                try:
                    ask(config)
                except Exception as error:
                    if not isinstance(error, KeyError | ModelError) or field not in str(error):
                        raise AssertionError(f"without {field!r} it fails: {type(error).__name__}: {error}") from error

    def test_described_folder_answers(self) -> None:
        """A folder as `describe` has it loads on the CPU runner: logits are finite, in parts the same bits."""
        whole = self._cpu_logits([_NUM_DESCRIBED])
        assert all(isfinite(number) for row in whole for number in row), "a logit is NaN, or infinite"
        parts = self._cpu_logits([1, 20, _NUM_DESCRIBED - 21])
        assert whole == parts, "a text's logits are others when it is computed in parts"

    def test_description_and_network_agree(self) -> None:
        """Where it describes a family and has a network as well, both give the same logits."""
        if not hasattr(self.make(), "describe"):
            pytest.skip("it describes no family")
        torch, shape = _torch(), self._shape()
        network = self._network_kind().load(self.config, shape, _Layers(torch, self.tensors))
        expected = network.logits(network.hidden(_Step(torch, shape, _NUM_DESCRIBED)))
        found = torch.tensor([list(row) for row in self._cpu_logits([_NUM_DESCRIBED])])
        error = float((found - expected).abs().max() / expected.abs().max())
        assert error < _CLOSE, f"logits of its description and of its network differ by {error:.2g} of the largest"

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
        return self._network_kind().shape(self.config)

    def _network(self) -> Network:
        return self._network_kind().load(self.config, self._shape(), _Layers(_torch()))

    def _step(self, num_tokens: int) -> _Step:
        return _Step(_torch(), self._shape(), num_tokens)

    def _network_kind(self) -> Architecture:
        architecture = self.make()
        if not isinstance(architecture, Architecture):
            pytest.skip("it has no network of its own")
        return architecture

    def _cpu_logits(self, lengths: Sequence[int]) -> list[array[float]]:
        """Return the logits of the first tokens, computed in parts of such lengths."""
        architecture = self.make()
        if not isinstance(architecture, DescribedArchitecture):
            pytest.skip("it describes no family")
        assert self.tensors, "`tensors` is empty: name the tensors of a folder with this `config`, each with its shape"
        tokens = [place % self.config.get("vocab_size", _NUM_DESCRIBED) for place in range(_NUM_DESCRIBED)]
        with TemporaryDirectory() as folder:
            write_folder(Path(folder), self.config, self.tensors)
            try:
                return cpu_logits(Path(folder), architecture, tokens, lengths)
            except PyAgentError as error:
                raise AssertionError(f"the CPU runner does not take it: {error}") from error


def _torch() -> Any:  # Any: it may not be there where this is checked
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return cast("Any", import_module("torch"))


class _Layers:
    """Parts over made-up weights, as plainly as they can be computed; of a folder's tensors, where they are told."""

    def __init__(self, torch: Any, tensors: Mapping[str, Sequence[int]] | None = None) -> None:
        self._torch, self._tensors = torch, tensors

    def has(self, name: str) -> bool:
        """Return whether the folder has it; without one, False for a bias: a model may lack it, and nothing else."""
        return not name.endswith("bias") if self._tensors is None else name in self._tensors

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return the same numbers for the same name."""
        if self._tensors is not None:
            told = tuple(self._tensors.get(name, ()))
            assert told == shape, f"`load` asks for {name} of {shape}, and `tensors` has {told}"
            return self._torch.frombuffer(made_up(name, shape), dtype=self._torch.float32).reshape(shape)
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
        bias = self.tensor(f"{name}.bias", size) if self.has(f"{name}.bias") else None
        return lambda x: self._torch.nn.functional.layer_norm(x, (size,), weight, bias, epsilon)

    def activation(self, name: str) -> Module:
        """Return GELU, ReLU, or SiLU for any other."""
        functions = self._torch.nn.functional
        if name in {"gelu_new", "gelu_pytorch_tanh"}:
            return lambda x: functions.gelu(x, approximate="tanh")
        return {"gelu": functions.gelu, "relu": functions.relu}.get(name, functions.silu)


class _Step:
    """One sequence's tokens, with attention as its formula reads."""

    def __init__(self, torch: Any, shape: ModelShape, num_tokens: int) -> None:
        self.tokens = torch.arange(num_tokens, dtype=torch.int32) % shape.vocab_size
        self.positions = torch.arange(num_tokens, dtype=torch.int32)
        self.layers: list[int] = []
        self._torch, self._shape = torch, shape

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return heads [T, Hq * D], each query seeing its own position and those before, as the shape says."""
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
        q, k = self._turned(q), self._turned(k)
        k, v = (each.repeat_interleave(shape.num_heads // shape.num_kv_heads, 1) for each in (k, v))
        scores = self._torch.einsum("qhd,khd->hqk", q, k) * shape.attention_scale
        if shape.attention_softcap is not None:
            scores = (scores / shape.attention_softcap).tanh() * shape.attention_softcap
        distance = self.positions[:, None] - self.positions
        scores = scores + self._added(layer, distance.clamp(min=0))
        window = shape.windows[layer] if shape.windows else None
        hidden = (distance < 0) | (distance >= (num if window is None else window))
        return self._torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -1e30).softmax(-1), v).flatten(1)

    def _turned(self, x: Tensor) -> Tensor:
        """Turn the pairs at the start of heads [T, H, D] by their positions."""
        shape, torch = self._shape, self._torch
        angles = self.positions[:, None, None] * torch.tensor(list(shape.rope_frequencies), dtype=torch.float64)
        cos, sin = (part.float() * shape.rope_attention_factor for part in (angles.cos(), angles.sin()))
        size = 2 * angles.shape[-1]
        turned, rest = x[..., :size], x[..., size:]
        pairs = turned.unflatten(-1, (-1, 2)).unbind(-1) if shape.is_rope_interleaved else turned.chunk(2, -1)
        first, second = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
        both = (
            torch.stack((first, second), -1).flatten(-2)
            if shape.is_rope_interleaved
            else torch.cat((first, second), -1)
        )
        return torch.cat((both, rest), -1)

    def _added(self, layer: int, distance: Tensor) -> Tensor:
        """Return what the layer's score function adds, [H, T, T] or what broadcasts to that."""
        functions = self._shape.score_functions
        function = functions[layer] if functions else None
        if function is None:
            return 0.0
        [table] = LayerTables.of([function]).evaluated(self._shape.num_heads, len(self.positions))
        return self._torch.from_numpy(table)[:, distance]
