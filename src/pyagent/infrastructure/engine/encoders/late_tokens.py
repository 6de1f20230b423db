"""The tokens of queries and documents for a model of late interaction, as PyLate shows them to it.

A mark stands behind the first token of each. A query is filled up with mask tokens, which see it and are not seen
(Khattab and Zaharia 2020, section 3.2); of a document punctuation counts for nothing. The folder is hostile input.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.encoders.text_tokens import UNSEEN, TextTokens
from pyagent.infrastructure.engine.tokens.model_folder import read_json

_FILE = "config_sentence_transformers.json"
_Length = Annotated[int, msgspec.Meta(ge=4, le=1 << 20)]
_Word = Annotated[str, msgspec.Meta(max_length=200)]


class _About(msgspec.Struct):
    """What PyLate writes beside a model; its own defaults."""

    query_prefix: _Word = "[Q] "
    document_prefix: _Word = "[D] "
    query_length: _Length = 32
    document_length: _Length = 180
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool = False
    skiplist_words: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=10_000)] = tuple(string.punctuation)


class LateTokens:
    """Tokens of one model's queries and documents. Any thread may call it."""

    def __init__(self, path: Path, tokens: TextTokens) -> None:
        """Read a folder. Raises `ModelError` for a mark or a mask that its vocabulary has not."""
        self._path = path
        try:
            said = {name: value for name, value in read_json(path / _FILE).items() if value is not None}
            about = msgspec.convert(said, _About)
        except msgspec.ValidationError as error:
            raise ModelError(f"{path}: {_FILE}: {error}", model=str(path)) from error
        self._query_mark = self._mark(tokens, about.query_prefix)
        self._document_mark = self._mark(tokens, about.document_prefix)
        self._query_length = min(about.query_length, tokens.max_tokens)
        self._queries = tokens.within(tokens.max_tokens - len(self._query_mark)).for_queries()
        document_length = min(about.document_length, tokens.max_tokens)
        self._documents = tokens.within(document_length - len(self._document_mark))
        self._filler: int | None = None
        if about.do_query_expansion:
            self._filler = self._mask(tokens) | (0 if about.attend_to_expansion_tokens else UNSEEN)
        numbers = map(tokens.token_id, about.skiplist_words)
        self._skipped = frozenset(number for number in numbers if number is not None)

    def queries(self, texts: Sequence[str], numbers: Sequence[int] | None = None) -> list[list[int]]:
        """Return the tokens of each query, which is never cut. Raises `RequestError` for one that will not do."""
        return [self._filled(self._marked(ids, self._query_mark)) for ids in self._queries.encode(texts, numbers)]

    def documents(
        self, texts: Sequence[str], numbers: Sequence[int] | None = None, *, truncates: bool = False
    ) -> list[list[int]]:
        """Return the tokens of each document. Raises `RequestError` for one that will not do."""
        found = self._documents.encode(texts, numbers, truncates=truncates)
        return [self._marked(ids, self._document_mark) for ids in found]

    def counts(self, token: int) -> bool:
        """Return whether a document's token counts."""
        return token not in self._skipped

    def _mark(self, tokens: TextTokens, mark: str) -> list[int]:
        return [self._number(tokens, mark)] if mark else []

    def _mask(self, tokens: TextTokens) -> int:
        about = read_json(self._path / "tokenizer_config.json")
        for name in ("mask_token", "eos_token"):
            token = about.get(name)
            token = token.get("content") if isinstance(token, dict) else token  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            if isinstance(token, str) and token:
                return self._number(tokens, token)
        text = f"{self._path}: tokenizer_config.json names no mask_token, with which queries are filled up"
        raise ModelError(text, model=str(self._path))

    def _number(self, tokens: TextTokens, token: str) -> int:
        found = tokens.token_id(token)
        if found is None:
            text = f"{self._path}: the tokenizer has no token {token!r:.60}, which queries or documents need"
            raise ModelError(text, model=str(self._path))
        return found

    def _filled(self, ids: list[int]) -> list[int]:
        if self._filler is None:
            return ids
        return ids + [self._filler] * (self._query_length - len(ids))

    @staticmethod
    def _marked(ids: list[int], mark: list[int]) -> list[int]:
        return ids[:1] + mark + ids[1:]
