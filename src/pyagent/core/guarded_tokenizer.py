"""A plugin's tokenizers, contained: one that is wrong fails its model's load, one that fails a text that request.

The bytes of all tokens are read and checked once; while answers are written, nothing of the plugin runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from pyagent.core.errors import PluginError, PyAgentError
from pyagent.core.tokenizers import Tokenizer, TokenizerFactory

_HOOK = "pyagent_register_tokenizers"
_MOST_TOKENS = 1 << 22


class GuardedTokenizerFactory:
    """Loads tokenizers as the factory does; its failures are `PluginError`s, or errors that say who can act."""

    def __init__(self, factory: TokenizerFactory, plugin: str) -> None:
        self._factory = factory
        self._plugin = plugin
        self.name = factory.name

    def matches(self, path: Path) -> bool:
        """Whether the model has such a tokenizer."""
        try:
            return bool(self._factory.matches(path))
        except Exception as error:
            raise self._error(f"failed to look at {path}: {type(error).__name__}: {error}") from error

    def load(self, path: Path) -> Tokenizer:
        """Return the model's tokenizer, checked."""
        try:
            return CheckedTokenizer(self._factory.load(path), self._plugin)
        except PyAgentError:
            raise
        except Exception as error:
            raise self._error(f"failed to load that of {path}: {type(error).__name__}: {error}") from error

    def _error(self, what: str) -> PluginError:
        return tokenizer_error(self._plugin, f"{what} (tokenizer {self.name!r}; engine.tokenizer names another)")


class CheckedTokenizer:
    """A plugin's tokenizer, whose values are what they should be."""

    def __init__(self, inner: Tokenizer, plugin: str) -> None:
        """Raises `PluginError` naming what is wrong."""
        self._inner = inner
        self._plugin = plugin
        self.num_tokens = self._checked("num_tokens", 1, _MOST_TOKENS)
        self.special_tokens = self._checked_special()
        self._special_ids = frozenset(self.special_tokens.values())
        self.end_ids = frozenset(self._checked_ids("end_ids", inner.end_ids))
        begin: object = inner.begin_id
        self.begin_id = None if begin is None else self._checked("begin_id", 0, self.num_tokens - 1)
        self.has_leading_space = bool(inner.has_leading_space)
        self._bytes = [self._checked_bytes(token) for token in range(self.num_tokens)]

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text. Raises `PluginError` where the plugin does, or gives what are no tokens."""
        try:
            ids = self._inner.encode(text)
        except Exception as error:
            what = f"failed to tokenise a text of {len(text)} characters: {type(error).__name__}"
            raise tokenizer_error(self._plugin, what) from error
        return self._checked_ids("encode(text)", ids)

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to a text."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def _checked(self, name: str, least: int, most: int) -> int:
        value: object = getattr(self._inner, name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, value, f"a number from {least} to {most}")
        return value

    def _checked_special(self) -> dict[str, int]:
        named = _mapping(self._inner.special_tokens)
        if named is None or not all(isinstance(name, str) and name for name in named):
            raise self._wrong("special_tokens", self._inner.special_tokens, "token ids by name")
        self._checked_ids("special_tokens", named.values())
        return cast("dict[str, int]", dict(named))

    def _checked_ids(self, name: str, ids: object) -> list[int]:
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
            raise self._wrong(name, ids, "token ids")
        found = list(cast("Iterable[object]", ids))
        wrong = [one for one in found if not isinstance(one, int) or not 0 <= one < self.num_tokens]
        if wrong:
            raise self._wrong(name, wrong[0], f"token ids below num_tokens={self.num_tokens}")
        return cast("list[int]", found)

    def _checked_bytes(self, token: int) -> bytes:
        value = cast("object", self._inner.token_bytes(token))
        if not isinstance(value, bytes):
            raise self._wrong(f"token_bytes({token})", value, "bytes")
        return b"" if token in self._special_ids else value

    def _wrong(self, name: str, value: object, expected: str) -> PluginError:
        return tokenizer_error(self._plugin, f"has `{name}` {value!r:.80}, expected {expected}")


def _mapping(value: object) -> Mapping[object, object] | None:
    return cast("Mapping[object, object]", value) if isinstance(value, Mapping) else None


def tokenizer_error(plugin: str, what: str) -> PluginError:
    """Return the error of a plugin whose tokenizer does not do what it should."""
    return PluginError(f"plugin {plugin!r} brings a tokenizer that {what}", plugin=plugin, hook=_HOOK)
