"""What an answer's outputs pass through on their way to the client: the conversation's token log takes them in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Output
    from pyagent.infrastructure.engine.sessions.sessions import Prompt, Sessions


def record_answers(
    sessions: Sessions,
    prompt: Prompt,
    on_output: Callable[[Output], None],
    assistant_prefix: Output,
    resumed: Output | None,
) -> Callable[[Output], None]:
    """Return `on_output` that records each whole answer in its conversation's log before its last output goes out.

    Every answer begins with `assistant_prefix`, the first one then with what was `resumed` of it.
    """
    outputs = defaultdict[int, list["Output"]](lambda: [assistant_prefix])
    if resumed is not None:
        outputs[0].append(resumed)

    def emit(output: Output) -> None:
        outputs[output.index].append(output)
        try:
            if output.finish_reason in {"stop", "length"}:
                answer = outputs.pop(output.index)
                tokens = [token for output in answer for token in output.tokens]
                sessions.record(prompt, "".join(output.text for output in answer), tokens)
        finally:
            on_output(output)

    return emit


def without_prefix(on_output: Callable[[Output], None], num_chars: int) -> Callable[[Output], None]:
    """Return `on_output` without the first characters: those of a prefix that a stop string might have begun in."""
    left = num_chars

    def emit(output: Output) -> None:
        nonlocal left
        num_skipped = min(left, len(output.text))
        left -= num_skipped
        on_output(replace(output, text=output.text[num_skipped:]) if num_skipped else output)

    return emit
