"""What marks a text for a model: the tasks of an embedding model, such as queries and passages, and the steps of a
solution. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyagent.core.errors import RequestError

Encode = Callable[[Sequence[str], Sequence[int]], list[list[int]]]
"""Returns the tokens of texts, which errors call by the numbers given."""
TASK_SHIFT = 26
"""From this bit on the engine reads the number of a text's task, from 1 on, in its first token."""
STEP_MARK = "<extra_0>"
"""What stands behind each step of a solution for Qwen's process reward models (arXiv 2501.07301)."""
QUERY, PASSAGE = "retrieval.query", "retrieval.passage"
"""The tasks of what is looked for, and of where it is looked for."""


def of_task(encode: Encode, tasks: Sequence[tuple[str, str]], name: str, model: str) -> Encode:
    """Return an `encode` for texts of a task, each behind the task's instruction.

    `tasks` are the model's, each with its instruction. Raises `RequestError` for a task that it has not.
    """
    names = [task for task, _ in tasks]
    if not names:
        raise RequestError(f"native:{model} has no tasks; leave out task", param="task")
    if name not in names:
        raise RequestError(f"native:{model} has no task {name!r:.60}; expected {', '.join(names)}", param="task")
    number, instruction = names.index(name) + 1, dict(tasks)[name]

    def encode_some(texts: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        # An empty text is refused as such.
        found = encode([instruction + text if text else text for text in texts], numbers)
        return [[ids[0] | number << TASK_SHIFT, *ids[1:]] for ids in found]

    return encode_some
