"""What an attention backend of the torch runner is, and which of them a model may get. Knows no torch.

A plugin brings backends by `pyagent_register_attention_backends`. `engine.attention` names one, or leaves the choice to
the runner, which takes the quickest that computes what the formula says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from pyagent.core.errors import PluginError

HOOK = "pyagent_register_attention_backends"
KEY = "engine.attention"

Attend = Callable[..., Any]
"""`attend(q, cache, batch, scale, window, softcap)` gives [T, Hq, D], all tensors torch's, which is not known here.

Where the shape has sinks there is a seventh argument, `sinks` float32 [Hq]: a score of each head, which takes part in
the softmax as that of a key whose value is 0.

`q` [T, Hq, D] are a step's queries. `cache.keys` and `cache.values` [num_pages, 16, Hkv, D] hold all keys, those of the
step too. `batch.query_starts` [n + 1], `batch.lengths` [n] and `batch.tables` [n, max_pages] say where the sequences'
queries, lengths and pages are; `batch.num_queries` and `batch.num_tokens` are the first two as numbers of the host. A
query sees the last `window` positions up to its own, or all of them; a score is `scale * q @ k`, put through `softcap *
tanh(score / softcap)` where there is one.
"""


Mask = Callable[..., Any]
"""`mask(head, query_position, key_position)` says whether the query sees the key: integer tensors in, truths out."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a model's layers ask of attention: on which device (torch's word), in which data types, for which heads.

    `windows` are those of its layers, None for a layer that sees every position. With sinks, each head has a score that
    takes part in every softmax (gpt-oss).
    """

    device: str
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: frozenset[int | None]
    softcap: float | None
    has_sinks: bool = False


class AttentionBackend(Protocol):
    """A way of computing attention over paged keys and values. `name` is what `engine.attention` calls it."""

    @property
    def name(self) -> str:
        """A word such as `triton`."""
        ...

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why it cannot compute such a model's attention here; None where it can."""
        ...

    def open(self, shape: AttentionShape) -> Attend:
        """Return what computes it, when the model is loaded."""
        ...


@runtime_checkable
class ChoosyAttentionBackend(Protocol):
    """A backend that is taken only where the settings name it, for models of some shapes or all."""

    def passed_over_reason(self, shape: AttentionShape) -> str | None:
        """Return why `engine.attention = "auto"` leaves it out; None where it may be taken."""
        ...


@runtime_checkable
class SinkAttentionBackend(Protocol):
    """A backend that says of itself whether it takes sinks: one that does not say so is not asked for them."""

    @property
    def takes_sinks(self) -> bool:
        """Whether `attend` may be called with sinks."""
        ...


@runtime_checkable
class InvariantAttentionBackend(AttentionBackend, Protocol):
    """A backend with a form for `engine.batch_invariant`: a query's bits depend on its own sequence alone."""

    def open_invariant(self, shape: AttentionShape) -> Attend:
        """Return what computes it so, when the model is loaded."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Backends that the settings allow: one where they name it, or those among which the runner measures.

    `known` are all that there are, to one of which a running model may be changed.
    """

    backends: tuple[AttentionBackend, ...] = ()
    is_auto: bool = True
    known: tuple[AttentionBackend, ...] = ()


AUTO_ATTENTION = AttentionChoice()
"""Whatever the runner has."""


@dataclass(frozen=True, slots=True)
class BroughtAttentionBackend:
    """A plugin's backend; what it raises or returns wrongly while a model loads is said with the plugin's name."""

    backend: AttentionBackend
    plugin: str

    @property
    def name(self) -> str:
        """What settings call it."""
        return self.backend.name

    def unavailable_reason(self, shape: AttentionShape) -> str | None:
        """Return why it cannot be used; None where it can."""
        return self._reason(self.backend.unavailable_reason, shape)

    @property
    def takes_sinks(self) -> bool:
        """Whether it says so."""
        return isinstance(self.backend, SinkAttentionBackend) and self.backend.takes_sinks is True

    def passed_over_reason(self, shape: AttentionShape) -> str | None:
        """Return why `auto` leaves it out; None where it may be taken."""
        if not isinstance(self.backend, ChoosyAttentionBackend):
            return None
        return self._reason(self.backend.passed_over_reason, shape)

    def open(self, shape: AttentionShape) -> Attend:
        """Return what computes attention. Raises `PluginError`."""
        try:
            attend = self.backend.open(shape)
        except Exception as error:
            raise self._error(f"cannot be opened: {type(error).__name__}: {error}") from error
        if not callable(cast("object", attend)):
            raise self._error(f"opened as {attend!r:.80}, which is not a function")
        return attend

    def _reason(self, ask: Callable[[AttentionShape], object], shape: AttentionShape) -> str | None:
        try:
            reason = ask(shape)
        except Exception as error:  # noqa: BLE001 - a plugin's
            return f"plugin {self.plugin!r} failed to say whether it can be used: {type(error).__name__}: {error}"
        return reason if reason is None or isinstance(reason, str) else f"it gave {reason!r:.80} as the reason"

    def _error(self, what: str) -> PluginError:
        text = f"plugin {self.plugin!r}: its attention backend {self.name!r} {what}"
        return PluginError(text, plugin=self.plugin, hook=HOOK)
