"""What an answer's outputs pass through on their way to the client: the conversation's token log takes them in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pyagent.core.messages import Message
from pyagent.core.tool_call_deltas import ToolCallJoiner

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.models.preprocessor import PromptTokens
    from pyagent.infrastructure.engine.request import Output
    from pyagent.infrastructure.engine.sessions.sessions import Sessions
    from pyagent.infrastructure.engine.tokens import Detokenizer


def record_answers(
    sessions: Sessions,
    asked: PromptTokens,
    stream: Detokenizer,
    on_output: Callable[[Output], None],
    resumed: Output | None,
) -> Callable[[Output], None]:
    """Return `on_output` that records each whole answer in its conversation's log before its last output goes out.

    The first one begins with what was `resumed` of it. `stream` writes answers' tokens as their clients got them.
    """
    outputs = defaultdict[int, list["Output"]](list)
    if resumed is not None:
        outputs[0].append(resumed)

    def emit(output: Output) -> None:
        outputs[output.index].append(output)
        try:
            if output.finish_reason in {"stop", "length", "tool_calls"}:
                record_answer(sessions, asked, stream, outputs.pop(output.index))
        finally:
            on_output(output)

    return emit


def record_answer(sessions: Sessions, asked: PromptTokens, stream: Detokenizer, outputs: Sequence[Output]) -> None:
    """Record a whole answer by all its outputs; its assistant prefix comes first."""
    answer = [asked.assistant_prefix.told, *outputs]
    tokens = [token for output in answer for token in output.tokens]
    text, written = "".join(output.text for output in answer), answer[-1].written
    if written is None:
        sessions.record(asked.prompt, text, tokens, stream=stream)
    else:
        message = asked.format.as_rendered(_message(text, answer))
        sessions.record(asked.prompt, asked.assistant_prefix.text + written, tokens, message, stream)


def _message(text: str, answer: Sequence[Output]) -> Message:
    """Return the answer as its client sends it back."""
    joiner = ToolCallJoiner()
    calls = [
        *joiner.push(piece for output in answer for piece in output.tool_calls),
        *joiner.finish(answer[-1].finish_reason),
    ]
    return Message("assistant", text or None, tool_calls=calls or None)


def without_prefix(on_output: Callable[[Output], None], num_chars: int) -> Callable[[Output], None]:
    """Return `on_output` without the first characters: those of a prefix that a stop string might have begun in."""
    left = num_chars

    def emit(output: Output) -> None:
        nonlocal left
        num_skipped = min(left, len(output.text))
        left -= num_skipped
        on_output(replace(output, text=output.text[num_skipped:]) if num_skipped else output)

    return emit
