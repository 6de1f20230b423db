"""How a decoder that ranks is shown a query and a document: by a chat template with a message for each.

Templates come with model files and are hostile input; queries and documents are as well, and stay text in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.model_folder import ModelFolder, read_json
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

_QUERY, _DOCUMENT = "pyagent query probe", "pyagent document probe"
_MORE_TRIES = 8


class PairTemplate:
    """Writes pairs as a model was trained on them. Any thread may call it."""

    def __init__(self, tokens: ModelTokenizer, template: ChatTemplate, instruction: str) -> None:
        """`instruction`, a system message, is what the model is told to look for; empty: what the template says."""
        self._tokens = tokens
        self._template = template
        self._instruction = instruction

    @classmethod
    def of(cls, path: Path, vocab_size: int) -> PairTemplate | None:
        """Return a model's template for pairs; None for one that has none. Raises `ModelError` for a faulty one."""
        if not path.is_dir() or ModelFolder(path).template is None:
            return None
        tokens = ModelTokenizer.load(path, vocab_size=vocab_size)
        if tokens.template is None:
            return None
        made = cls(tokens, tokens.template, _instruction(path))
        try:
            shown = made._rendered(_QUERY, _DOCUMENT)
        except RequestError:
            return None
        return made if _QUERY in shown and _DOCUMENT in shown else None

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
        texts = [("query", query), ("document", document)]
        if self._instruction:
            texts.insert(0, ("system", self._instruction))
        messages = [{"role": role, "content": self._tokens.markers.parted(text)} for role, text in texts]
        return self._template.render(messages)


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
