"""How a decoder that ranks is shown a query and a document.

A folder has a chat template with a message for each, a GGUF file a text with `{query}` and `{document}` in it. Both
come with model files and are hostile input; queries and documents are as well, and stay text in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from pyagent import _rust
from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, read_json
from pyagent.infrastructure.engine.tokens.templates import MAX_TEMPLATE_CHARS, ChatTemplate

_QUERY, _DOCUMENT = "pyagent query probe", "pyagent document probe"
_MORE_TRIES = 8
_OF_GGUF = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"\{(query|document)\}")
Show = Callable[[str, str], str]
"""Writes a query and a document, whose markers are parted, as the model is shown them."""


class PairTemplate:
    """Writes pairs as a model was trained on them. Any thread may call it."""

    def __init__(self, tokens: ModelTokenizer, show: Show) -> None:
        """`tokens` is the model's tokenizer."""
        self._tokens = tokens
        self._show = show

    @classmethod
    def of(cls, path: Path, vocab_size: int) -> PairTemplate | None:
        """Return a model's template for pairs; None for one that has none. Raises `ModelError` for a faulty one."""
        is_folder = path.is_dir()
        told = ModelFolder(path).template if is_folder else _told_in_gguf(path)
        if told is None:
            return None
        tokens = ModelTokenizer.load(path, vocab_size=vocab_size)
        show: Show = partial(_by_places, told)
        if is_folder:
            if tokens.template is None:
                return None
            show = partial(_by_messages, tokens.template, _instruction(path))
        try:
            shown = show(_QUERY, _DOCUMENT)
        except RequestError:
            return None
        return cls(tokens, show) if _QUERY in shown and _DOCUMENT in shown else None

    def encode(self, query: str, document: str, most: int, *, truncates: bool) -> tuple[list[int], int]:
        """Return the tokens of a pair, and how many there are with nothing cut.

        A longer pair than `most` tokens is cut at its document's end where it `truncates`; it stays longer where that
        is not enough, or nothing may be cut.
        """
        ids = self._encoded(query, document)
        whole = len(ids)
        for _ in range(_MORE_TRIES):
            excess = len(ids) - most
            if excess <= 0 or not truncates or not document:
                break
            # So many characters as so many tokens had, and one more: what is cut may end in other tokens.
            document = self._shortened(document, excess)
            ids = self._encoded(query, document)
        return ids, whole

    def _shortened(self, document: str, excess: int) -> str:
        tokens = self._tokens.encode_further(document)
        kept = self._tokens.decode(tokens[: max(0, len(tokens) - excess - 1)])
        return document[: len(kept)] if len(kept) < len(document) else document[:-1]

    def _encoded(self, query: str, document: str) -> list[int]:
        return self._tokens.encode_rendered(self._rendered(query, document))

    def _rendered(self, query: str, document: str) -> str:
        parted = self._tokens.markers.parted
        return self._show(parted(query), parted(document))


def _by_messages(template: ChatTemplate, instruction: str, query: str, document: str) -> str:
    """Render messages; the instruction, a system message, is what the model is told to look for, if anything."""
    texts = [("query", query), ("document", document)]
    if instruction:
        texts.insert(0, ("system", instruction))
    return template.render([{"role": role, "content": text} for role, text in texts])


def _told_in_gguf(path: Path) -> str | None:
    told = _rust.read_model_header(path, arrays=False)["metadata"].get(_OF_GGUF)
    if not isinstance(told, str):
        return None
    if len(told) > MAX_TEMPLATE_CHARS or len(_PLACES.findall(told)) > 2:
        text = f"{path}: '{_OF_GGUF}' is too long, or has more than one query and document"
        raise ModelError(text, model=str(path))
    return told


def _by_places(told: str, query: str, document: str) -> str:
    texts = {"query": query, "document": document}
    return _PLACES.sub(lambda found: texts[found[1]], told)


def _instruction(path: Path) -> str:
    """Return the prompt that sentence-transformers gives a model where nothing is said."""
    about = read_json(path / "config_sentence_transformers.json")
    prompts, name = about.get("prompts"), about.get("default_prompt_name")
    if not isinstance(prompts, dict) or not isinstance(name, str):
        return ""
    found = cast("dict[str, object]", prompts).get(name)
    if not isinstance(found, str):
        text = f"{path}: config_sentence_transformers.json has no prompt {name!r:.60}, which it names as its default"
        raise ModelError(text, model=str(path))
    return found
