"""A tiny model whose template knows tools and thinking, in the manner of Qwen3, and one that says what a script has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.tiny_model import CONTROL_TOKENS, vocabulary, write_tiny_model

from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.options import EngineOptions

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\nTools: ' ~ tools | tojson ~ '\nCall one in <tool_call></tool_call>."
    "<|im_end|>\n' }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if m.reasoning_content and loop.index0 > 0 and messages[-1].role == 'tool' %}"
    "{{ '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}"
    '{{ \'<tool_call>\n{"name": "\' ~ call.function.name ~ \'", "arguments": \' ~ call.function.arguments | tojson '
    "~ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% elif m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' ~ m.content ~ '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)


def write_calling_model(path: Path, *, tags: Sequence[str] = TAGS, is_control: bool = False, **changes: object) -> Path:
    """Write the model: the tags are tokens, but no control tokens unless asked, as in Qwen3."""
    tokens, merges = vocabulary()
    kept, gone = tokens[: -len(tags)], set(tokens[-len(tags) :])
    kinds = [3] * len(CONTROL_TOKENS) + [1] * (len(kept) - len(CONTROL_TOKENS)) + [3 if is_control else 4] * len(tags)
    named: dict[str, object] = {
        "tokenizer__ggml__tokens": [*kept, *tags],
        "tokenizer__ggml__token_type": kinds,
        "tokenizer__ggml__merges": [merge for merge in merges if merge.replace(" ", "") not in gone],
        "tokenizer__chat_template": TEMPLATE,
        "llama__context_length": 4096,
    }
    return write_tiny_model(path, **(named | changes))


class ScriptedRunner:
    """A runner whose samples are the tokens of texts, one text an answer in turn, as far as masks allow."""

    def __init__(self, runner: Any, scripts: Sequence[list[int]], end_id: int) -> None:
        self._runner = runner
        self._scripts = [*scripts]
        self._end_id = end_id
        self._left: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, batch: Batch) -> StepOutput:
        """Compute the step, and say what the script has."""
        output = self._runner.execute(batch)
        for row in range(len(output.tokens)):
            left = self._left.get(batch.sequence_ids[row])
            if left is None:
                left = self._left[batch.sequence_ids[row]] = self._scripts.pop(0)
            token = left[0] if left else self._end_id
            mask = batch.masks.get(row)
            if mask is None or mask[token // 8] >> token % 8 & 1:
                output.tokens[row] = token
                del left[:1]
        return output


async def scripted(path: Path, *texts: str, **options: Any) -> NativeBackend:
    """A backend whose answers are these texts in turn; what follows a text is the end of the answer."""
    chosen = EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 23), async_scheduling="off", **options)
    backend = NativeBackend.of("tiny", lambda: path, chosen)
    assert isinstance(backend.engine, LocalEngine)
    model = await backend.engine.load("tiny")
    scripts = [model.tokenizer.encode_continuation(text) for text in texts]
    model.engine.runner = ScriptedRunner(model.runner, scripts, min(model.tokenizer.end_ids))  # type: ignore[assignment]
    return backend


@asynccontextmanager
async def saying(path: Path, *texts: str, **options: Any) -> AsyncIterator[NativeBackend]:
    """Likewise, closed at the end."""
    backend = await scripted(path, *texts, **options)
    try:
        yield backend
    finally:
        await backend.close()
