"""What a grammar backend is: it compiles what an answer must match, and says which tokens may come next.

A plugin brings backends by `pyagent_register_grammar_backends`; llguidance is the built-in one. A mask has one bit a
token, set where the token is allowed, the least significant first, in whole 32-bit words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from pyagent.core.errors import PluginError, PyAgentError
from pyagent.core.logits_processors import Vocabulary

HOOK = "pyagent_register_grammar_backends"

GrammarKind = Literal["json_schema", "choice", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What an answer must match. `text` is a JSON schema as JSON, a JSON list of texts, a regex, or llguidance's Lark.

    JSON is written with one space after `:` and `,` and none elsewhere.
    """

    kind: GrammarKind
    text: str


class GrammarVocabulary(Vocabulary, Protocol):
    """A model's tokens, and how it reads text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of text in the middle of an answer."""
        ...


def mask_bytes(vocab_size: int) -> int:
    """Return the bytes of a mask."""
    return -(-vocab_size // 32) * 4


class GrammarMatcher(Protocol):
    """One answer's place in a grammar. What it raises ends that answer alone, with the reason."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end can follow."""
        ...

    def accept(self, token: int) -> None:
        """Go on by a token; raise where it is not allowed. An end token ends the grammar."""
        ...

    def copy(self) -> GrammarMatcher:
        """Return a matcher at the same place; neither moves the other."""
        ...


class GrammarBackend(Protocol):
    """Compiles grammars for one vocabulary, in several threads at once, and computes the masks of a step in one."""

    def compile(self, source: GrammarSource) -> GrammarMatcher:
        """Return a matcher at the start. Raises `RequestError` for what it cannot enforce; the next is asked then."""
        ...

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        """Write each matcher's mask to its row of `masks`, whose rows have `mask_bytes` bytes each.

        Raises where one fails; each is asked alone then, and that one's answer ends.
        """
        ...


class GrammarBackendFactory(Protocol):
    """Opens a backend for a model's vocabulary. `name` is what `engine.structured_outputs_backend` calls it."""

    @property
    def name(self) -> str:
        """A word such as `guidance`."""
        ...

    def unavailable_reason(self) -> str | None:
        """Return why it cannot be used here, such as a package that is not installed; None where it can."""
        ...

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
        """Return the backend for a model, when its first grammar is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class BroughtGrammarBackend:
    """A plugin's factory; what it raises or returns wrongly is a `PluginError` that names the plugin."""

    factory: GrammarBackendFactory
    plugin: str

    @property
    def name(self) -> str:
        """What settings call it."""
        return self.factory.name

    def unavailable_reason(self) -> str | None:
        """Return why it cannot be used here; None where it can."""
        try:
            reason = cast("object", self.factory.unavailable_reason())
        except Exception as error:  # noqa: BLE001 - a plugin's
            return f"plugin {self.plugin!r} failed to say whether it can be used: {type(error).__name__}: {error}"
        return reason if reason is None or isinstance(reason, str) else f"it gave {reason!r:.80} as the reason"

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
        """Return the backend for a model."""
        try:
            opened = self.factory.open(vocabulary)
        except (PyAgentError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._error(f"cannot be opened: {type(error).__name__}: {error}") from error
        if missing := [name for name in ("compile", "fill_masks") if not callable(getattr(opened, name, None))]:
            raise self._error(f"has no `{missing[0]}`")
        return opened

    def _error(self, what: str) -> PluginError:
        text = f"plugin {self.plugin!r}: its grammar backend {self.name!r} {what}"
        return PluginError(text, plugin=self.plugin, hook=HOOK)
