"""Answers as the models of each dialect write them, after the formats' documentation, broken ones included."""

from __future__ import annotations

from dataclasses import dataclass, field
from json import loads
from typing import Any

from pyagent.core.messages import FunctionDefinition, Tool

Call = tuple[str, Any]


@dataclass(frozen=True)
class Case:
    """An answer's text and what it says; arguments of calls are a value, or a str where the answer is cut."""

    says: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    is_reasoning: bool = False
    has_tools: bool = True

    @property
    def is_cut(self) -> bool:
        """Whether the answer was to go on."""
        return any(isinstance(arguments, str) for _, arguments in self.calls)


WEATHER = Tool(
    FunctionDefinition(
        "get_weather",
        "Look up the weather.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    )
)
NOTE = Tool(
    FunctionDefinition(
        "write_note",
        "Write a note.",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "options": {"type": "object"},
                "score": {"type": ["number", "null"]},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
    )
)
NOW = Tool(FunctionDefinition("now", "Tell the time."))
TOOLS = [WEATHER, NOTE, NOW]


def arguments_of(text: str) -> Any:
    """Arguments as a value; the text itself where it is no JSON."""
    try:
        return loads(text)
    except ValueError:
        return text
