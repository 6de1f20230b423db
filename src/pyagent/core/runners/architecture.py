"""What a plugin's model architecture is: a folder in the words of a family that runners know, or a network of its own.

The first runs wherever the family does. The second is the torch runner's: a model's shape, and its forward pass. Keys
and values, pages, batches and devices are the runner's: a network sees the tokens of a step, and asks for attention by
layer. Knows torch by name only: an architecture is found, and says what a model takes, without importing it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from pyagent.core.errors import ModelError, PluginError, PyAgentError

_HOOK = "pyagent_register_architectures"

Tensor = Any
"""One of torch's, which is not there where this is imported and checked."""

Module = Callable[[Tensor], Tensor]
"""A part of a network: what it makes of [T, ...]."""


ScoreFunction = Callable[[Any, Any], Any]
"""`score(head, distance)` gives what is added to a head's scaled score of a key so many positions before its query.

It is called once, when the model is loaded: with numpy's arrays [heads, 1] and [1, distances] of whole numbers from 0
on, for what has, or broadcasts to, [heads, distances]. `-inf` masks a key; distance 0 may not be masked.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDescription:
    """A folder as one of a family that the CPU runner reads.

    `config` is the family's `config.json`, its `model_type` included; how weights are quantised the folder's own says,
    unless this does. `tensor_names` maps beginnings of the folder's names, of whole parts between dots, to those of the
    family: `{"transformer.h.{layer}.attn.q": "model.layers.{layer}.self_attn.q_proj"}`. A word in braces stands for a
    number. The pattern of the most parts is taken, of several the one with the fewest braces; a name that begins with
    none is kept. `score_functions` say of each layer what is added to its scores by distance (None: nothing), in place
    of what the family adds; without any, the family's is added.
    """

    config: Mapping[str, Any]
    tensor_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    score_functions: Sequence[ScoreFunction | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the torch runner must know of a model besides its weights.

    A head has `head_dim` numbers; `windows` says of each layer how many positions it sees, its own included (None:
    all), and without any, all layers see all. Scores are `attention_scale * q @ k`, put through
    `attention_softcap * tanh(score / attention_softcap)` where there is one. `rope_frequencies` are the radians that
    each pair at the start of a head turns for a position, pairs being halves of the rotated part apart, or neighbours
    with `is_rope_interleaved`; without any, nothing is turned. `rope_attention_factor` multiplies what is turned, as in
    YaRN. Where positions are a frame, a row and a column (M-RoPE), `rope_axes` says which of the three each frequency
    turns by; a token of text has its place as all three. `score_functions` say of each layer what is added to its
    scores by distance (None: nothing), and without any, nothing is; there is no softcap beside them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    context_length: int
    attention_scale: float
    windows: Sequence[int | None] = ()
    attention_softcap: float | None = None
    rope_frequencies: Sequence[float] = (0.0,)
    rope_attention_factor: float = 1.0
    is_rope_interleaved: bool = False
    rope_axes: Sequence[int] = ()
    score_functions: Sequence[ScoreFunction | None] = ()


class ModelLayers(Protocol):
    """Makes a network's parts of the tensors of a model's folder, by their names there, on the runner's device.

    A tensor that is missing, or of another shape, is a `ModelError` that names it.
    """

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in the data type of the runner's products."""
        ...

    def embedding(self, weight: Tensor) -> Module:
        """Return what looks rows of `weight` [rows, width] up: token ids, or positions, [T] to [T, width]."""
        ...

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Module:
        """Return what multiplies [T, in] with `weight` [out, in] and adds `bias` [out], quickest here."""
        ...

    def rms_norm(self, name: str, size: int, epsilon: float) -> Module:
        """Return an RMSNorm with the weights `name`, computed in float32."""
        ...

    def layer_norm(self, name: str, size: int, epsilon: float) -> Module:
        """Return a LayerNorm with `name.weight`, and `name.bias` where it is there, computed in float32."""
        ...

    def activation(self, name: str) -> Module:
        """Return an activation by its name in `config.json`: gelu, gelu_new, gelu_pytorch_tanh, relu, silu ..."""
        ...


class ForwardPass(Protocol):
    """A step: T tokens of several sequences, one's after the other's."""

    @property
    def tokens(self) -> Tensor:
        """Token ids, int32 [T]."""
        ...

    @property
    def positions(self) -> Tensor:
        """Each token's position in its sequence, int32 [T]."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Turn queries and keys by their positions, keep keys and values, and return heads [T, Hq * D].

        Queries are [T, Hq, D], keys and values [T, Hkv, D]; a token's heads lie together. Called once for each layer.
        """
        ...


class Network(Protocol):
    """A model's layers over its weights."""

    def hidden(self, step: ForwardPass) -> Tensor:
        """Return [T, hidden]: what the last layer gives, for all tokens."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [m, vocabulary] of some rows of `hidden`."""
        ...


@runtime_checkable
class DescribedArchitecture(Protocol):
    """A kind of model that is one of a family's, but for its names: it runs from a folder wherever the family does.

    `config` is as that of `Architecture`. A field of it that `describe` does not look at is refused by name, unless it
    is known to change no number.
    """

    @property
    def name(self) -> str:
        """What `config.json` calls it: its `model_type`."""
        ...

    def describe(self, config: Mapping[str, Any]) -> FamilyDescription:
        """Return what the folder is to be read as. Raises `ModelError` for what it cannot describe."""
        ...


@runtime_checkable
class Architecture(Protocol):
    """A kind of model that the torch runner can run from a folder of safetensors, by a network of its own.

    With a `describe` as well (`DescribedArchitecture`), other runners have that.

    `config` is the folder's `config.json`, with the fields of its `text_config` where it has one. A field of it that
    neither `shape` nor `load` looks at is refused by name when the model is loaded, unless it is known to change no
    number.
    """

    @property
    def name(self) -> str:
        """What `config.json` calls it: its `model_type`."""
        ...

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape that a configuration says; imports no torch. Raises `ModelError` for what it cannot run."""
        ...

    def load(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> Network:
        """Return the model over its tensors. Raises `ModelError`."""
        ...


@dataclass(frozen=True, slots=True)
class BroughtArchitecture:
    """An architecture, and the plugin that brings it, which is named in its faults."""

    architecture: Architecture | DescribedArchitecture
    plugin: str

    @property
    def network(self) -> Architecture | None:
        """What makes a network of its own, where it does."""
        return self.architecture if isinstance(self.architecture, Architecture) else None

    @property
    def described(self) -> DescribedArchitecture | None:
        """What describes folders as a family's, where it does."""
        return self.architecture if isinstance(self.architecture, DescribedArchitecture) else None

    @contextmanager
    def named(self, what: str, path: str) -> Generator[None]:
        """Make of its failures errors that say who can act: a field that is missing is the model's fault."""
        name = self.architecture.name
        try:
            yield
        except PyAgentError:
            raise
        except KeyError as error:
            text = f"{path}: config.json lacks {error}, which the architecture {name} needs"
            raise ModelError(text, model=path) from error
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            text = f"plugin {self.plugin!r} failed to {what} of {path} by its architecture {name}: {why}"
            raise PluginError(text, plugin=self.plugin, hook=_HOOK) from error
