"""The places in a step's texts: `{task}` is the run's task, `{item}` that of `for_each`, `{item.name}` a part of it.

They are filled in one pass: what one of them says is no place for another. What comes of a text is bounded, as a short
text with many places for a long one is long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task, text_of
from pyagent.core.fleet.condition_values import Reference, Seen
from pyagent.core.messages import JsonObject

MAX_CHARACTERS = 1_000_000
"""Of a text with its places filled."""
_PLACE = re.compile(r"\{task\}|\{item((?:\.[\w-]{1,100}){0,8})\}")
_ITEM = "item"


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """What the places are filled with. Without the task or an item their places stay as they are."""

    task: str | None = None
    items: Mapping[str, object] = {}

    @classmethod
    def of_item(cls, item: object) -> Filling:
        """Return what an item fills."""
        return cls(items={_ITEM: item})

    def text(self, text: str) -> str:
        """Return a text with its places filled; raises `RequestError` when it becomes too long."""
        pieces: list[str] = []
        num_characters = end = 0
        for place in _PLACE.finditer(text):
            pieces += (text[end : place.start()], self._said(place))
            num_characters += len(pieces[-1]) + len(pieces[-2])
            end = place.end()
            _check_length(num_characters)
        if not pieces:
            return text
        pieces.append(text[end:])
        _check_length(num_characters + len(pieces[-1]))
        return "".join(pieces)

    def _said(self, place: re.Match[str]) -> str:
        if place[0] == "{task}":
            return place[0] if self.task is None else self.task
        if not self.items:
            return place[0]
        keys = tuple((place[1] or "").split(".")[1:])
        return text_of(Reference(_ITEM, keys).value(Seen(self.items)))

    def value(self, value: object) -> object:
        """Return a value with the places in all its texts filled."""
        if self.task is None and not self.items:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(each) for each in cast("list[object]", value)]
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in cast("dict[str, object]", value).items()}
        return value

    def of_task(self, task: Task) -> Task:
        """Return a task with its places filled. An item that comes of a result names no file outside the task's."""
        return msgspec.structs.replace(
            task,
            text=self.text(task.text),
            files=tuple(self._file(file) for file in task.files),
            arguments=cast("JsonObject", self.value(task.arguments)),
        )

    def _file(self, template: str) -> str:
        """Return a file's name; raises `RequestError` when the item leads out of the folder before its place."""
        name = self.text(template)
        place = _PLACE.search(template)
        if name == template or place is None:
            return name
        folder = Path(template[: place.start()] + "x").parent.resolve()
        try:
            is_inside = Path(name).resolve().is_relative_to(folder)
        except (OSError, ValueError, RuntimeError):
            is_inside = False
        if not is_inside:
            raise RequestError(
                f"the file {name!r:.200} is not below {folder}, where the step's files are", param="files"
            )
        return name


def _check_length(num_characters: int) -> None:
    if num_characters > MAX_CHARACTERS:
        text = f"a step's text has at most {MAX_CHARACTERS:,} characters once {{task}} and {{item}} are filled in"
        raise RequestError(f"{text}; this one has more", param="task")
