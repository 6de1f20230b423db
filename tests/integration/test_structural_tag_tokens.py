"""Structural tags that are control tokens of the model: begun and ended by the tokens, and told to the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from support.calling_model import scripted, write_calling_model

from pyagent.core.response_format import ResponseFormat
from pyagent.core.structural_tags import AnyText, RegexContent, Tag, TriggeredTags
from pyagent.infrastructure.engine.grammar import GrammarCompiler
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

DIGITS = {"type": "regex", "pattern": "[0-9]{2}"}
CALL: dict[str, Any] = {"type": "tag", "begin": "<tool_call>\n", "content": DIGITS, "end": "\n</tool_call>"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calling_model(tmp_path_factory.mktemp("model") / "tiny.gguf", is_control=True)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> ModelTokenizer:
    return ModelTokenizer.load(model, vocab_size=400)


def takes(tokenizer: ModelTokenizer, tags: Any, *parts: str | int) -> bool:
    """Whether letters, and tokens by their ids, are allowed in this order, and the end after them."""
    grammar = (
        GrammarCompiler(ModelVocabulary(tokenizer))
        .begin(ResponseFormat("structural_tag", structural_tag=tags))
        .result()
    )
    for part in parts:
        for token in [part] if isinstance(part, int) else tokenizer.encode_continuation(part):
            if not grammar.mask()[token // 8] >> token % 8 & 1:
                return False
            grammar.accept(token)
    end = min(tokenizer.end_ids)
    return bool(grammar.mask()[end // 8] >> end % 8 & 1)


def test_tags_are_the_models_tokens(tokenizer: ModelTokenizer) -> None:
    """A tag of a control token begins by that token alone, after any text; its letters stay out of the text."""
    begin, end, think = (tokenizer.token_id(name) or 0 for name in ("<tool_call>", "</tool_call>", "</think>"))
    tag = Tag("<tool_call>\n", RegexContent("[0-9]{2}"), "\n</tool_call>")
    for trigger in ("<tool_call>", "<tool_call>\n", "<tool"):
        tags = TriggeredTags([trigger], [tag])
        assert takes(tokenizer, tags, "free text")
        assert takes(tokenizer, tags, "a", begin, "\n12\n", end, "b", begin, "\n34\n", end)
        assert not takes(tokenizer, tags, "a", begin, "\n1")
        assert not takes(tokenizer, tags, "a", begin, "x")
        assert not takes(tokenizer, tags, "a<tool_call>\n12\n")
    free = Tag("<tool_call>", AnyText(), ["\n</tool_call>", "</think>", "stop"])
    assert takes(tokenizer, free, begin, "some\ntext\n", end)
    assert takes(tokenizer, free, begin, think)
    assert takes(tokenizer, free, begin, "a stop")
    assert not takes(tokenizer, free, begin, "a stop ", end)
    assert not takes(tokenizer, free, begin, "text", end)


def test_tags_of_tokens_are_told(model: Path) -> None:
    """The client reads the tags in the answer, though control tokens are left out of texts else."""
    backend = asyncio.run(scripted(model, "hm<tool_call>\n12\n</tool_call>", "hm"))
    form = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [CALL]}}
    with serve(create_app(backend)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        ask: Any = [{"role": "user", "content": "go"}]
        answer: Any = client.chat.completions.create(
            model="tiny", messages=ask, max_tokens=60, temperature=0, extra_body={"response_format": form}
        )
    assert answer.choices[0].message.content == "hm<tool_call>\n12\n</tool_call>"
    asyncio.run(backend.close())


def test_brackets_without_number_are_read_once(tokenizer: ModelTokenizer) -> None:
    """A tag of a hundred thousand brackets is read in one pass."""
    begin = "<a>" + "<" * 100_000 + "<b>" * 30_000
    assert not takes(tokenizer, TriggeredTags(["<a>"], [Tag(begin, AnyText(), "</a>")]), "<a>")
