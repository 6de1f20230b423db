"""One conversation with tools, as a model of each of three dialects holds it: thoughts, a call, two calls, an answer.

The templates are written anew in the manner of the families'. A model answers by how many results it has been shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.calling_model import TAGS, TEMPLATE, write_calling_model

from pyagent.core.messages import JsonObject

QUESTION = "Where is it warmer, in Rome or in Oslo?"
TASK = "Find the weather in Atlantis."
FINAL = "Rome, by 20 degrees. It is noon in Oslo."
CITY = {"city": {"type": "string", "enum": ["Rome", "Oslo", "Atlantis"]}}
PARAMETERS: JsonObject = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
ABOUT = {"weather": "The weather in a city.", "clock": "The time in a city."}
Calls = tuple[tuple[str, str], ...]
"""Names of tools, and the city each is asked for."""


@dataclass(frozen=True)
class Turn:
    """One answer of the model."""

    thought: str
    text: str = ""
    calls: Calls = ()


PARALLEL = (
    Turn("Rome first.", calls=(("weather", "Rome"),)),
    Turn("Then Oslo.", "Rome has 25 degrees.", (("weather", "Oslo"), ("clock", "Oslo"))),
    Turn("20 more.", FINAL),
)
ONE_BY_ONE = (
    Turn("Rome first.", calls=(("weather", "Rome"),)),
    Turn("Then Oslo.", calls=(("weather", "Oslo"),)),
    Turn("And the time.", calls=(("clock", "Oslo"),)),
    Turn("20 more.", FINAL),
)
FAILING = (
    Turn("A city?", calls=(("weather", "Atlantis"),)),
    Turn("None.", "There is no Atlantis."),
)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a family's models write an answer, and what their prompts have: `end` after a question, `begin` before an
    answer, and each result as `result` says.
    """

    name: str
    template: str
    tags: Sequence[str]
    write: Callable[[Turn], str]
    end: str
    begin: str
    result: str
    turns: Sequence[Turn] = PARALLEL
    is_control: bool = True

    def model(self, folder: Path, **changes: object) -> Path:
        """Write a tiny model of the family."""
        path = folder / f"{self.name}.gguf"
        changes = {"tokenizer__chat_template": self.template, "llama__context_length": 1 << 18} | changes
        return write_calling_model(path, tags=self.tags, is_control=self.is_control, **changes)

    def script(self, prompt: str) -> str:
        """Return the answer to a prompt of either task, by the results since it was set."""
        place, turns = max((prompt.rfind(QUESTION), self.turns), (prompt.rfind(TASK), FAILING), key=lambda one: one[0])
        num_results = prompt.count(self.result.partition("{text}")[0].rpartition("}")[2], max(place, 0))
        return self.write(turns[min(num_results, len(turns) - 1)])

    def conversation(self, turns: Sequence[Turn]) -> str:
        """Return what follows the question in the prompt of the last of these answers."""
        return self.end + "".join(self._told(turn) for turn in turns[:-1]) + self.begin

    def _told(self, turn: Turn) -> str:
        results = [self.result.format(name=name, text=RESULTS[name, city]) for name, city in turn.calls]
        return self.begin + self.write(turn) + "".join(results)


def _qwen3(turn: Turn) -> str:
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {_city(city)}}}\n</tool_call>' for name, city in turn.calls
    ]
    return f"<think>\n{turn.thought}\n</think>\n\n" + "\n".join([*filter(None, [turn.text]), *calls]) + "<|im_end|>\n"


def _llama3(turn: Turn) -> str:
    calls = [f'{{"name": "{name}", "parameters": {_city(city)}}}' for name, city in turn.calls]
    return ("; ".join(calls) or turn.text) + "<|eot_id|>"


def _harmony(turn: Turn) -> str:
    begun = f"<|channel|>analysis<|message|>{turn.thought}<|end|><|start|>assistant"
    if not turn.calls:
        return f"{begun}<|channel|>final<|message|>{turn.text}<|return|>"
    ((name, city),) = turn.calls
    return f"{begun}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_city(city)}<|call|>"


def _city(city: str) -> str:
    return json.dumps({"city": city})


LLAMA3_TEMPLATE = (
    "{% for m in messages %}{{ '<|start_header_id|>' ~ ('ipython' if m.role == 'tool' else m.role) "
    "~ '<|end_header_id|>\n\n' }}"
    '{% if loop.index0 == 0 and tools %}{{ \'Answer with {"name": ..., "parameters": ...}. \' ~ tools | tojson }}'
    "{% endif %}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ '; ' if not loop.first }}"
    '{{ \'{"name": "\' ~ call.function.name ~ \'", "parameters": \' ~ call.function.arguments | tojson ~ "}" }}'
    "{% endfor %}{% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content | trim }}{% endif %}"
    "{{ '<|eot_id|>' }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
HARMONY_TEMPLATE = (
    "{% set ns = namespace(last='') %}"
    "{% if tools %}{{ '<|start|>developer<|message|>' ~ tools | tojson ~ '<|end|>' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "{% if m.content and m.thinking %}{{ raise_exception('one of both') }}{% endif %}"
    "{% if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>commentary to=functions.' ~ call.name ~ ' <|constrain|>json<|message|>' "
    "~ call.arguments | tojson ~ '<|call|>' }}{% set ns.last = call.name %}"
    "{% elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}"
    "{% elif m.role == 'tool' %}{{ '<|start|>functions.' ~ ns.last ~ ' to=assistant<|channel|>commentary<|message|>' "
    "~ m.content | tojson ~ '<|end|>' }}"
    "{% else %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}{% endfor %}"
    "{{ '<|start|>assistant' }}"
)
QWEN3 = Dialect(
    name="qwen3",
    template=TEMPLATE,
    tags=TAGS,
    write=_qwen3,
    end="<|im_end|>\n",
    begin="<|im_start|>assistant\n",
    result="<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n",
    is_control=False,
)
LLAMA3 = Dialect(
    name="llama3",
    template=LLAMA3_TEMPLATE,
    tags=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|eom_id|>"),
    write=_llama3,
    end="<|eot_id|>",
    begin="<|start_header_id|>assistant<|end_header_id|>\n\n",
    result='<|start_header_id|>ipython<|end_header_id|>\n\n"{text}"<|eot_id|>',
)
HARMONY = Dialect(
    name="harmony",
    template=HARMONY_TEMPLATE,
    tags=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    write=_harmony,
    end="<|end|>",
    begin="<|start|>assistant",
    result='<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>"{text}"<|end|>',
    turns=ONE_BY_ONE,
)
DIALECTS = {dialect.name: dialect for dialect in (QWEN3, LLAMA3, HARMONY)}
RESULTS = {
    ("weather", "Rome"): "sun, 25",
    ("weather", "Oslo"): "snow, 5",
    ("clock", "Oslo"): "12:00",
    ("weather", "Atlantis"): "Error: no such city",
}


class UnknownCityError(Exception):
    """What a tool raises."""


@dataclass
class Toolbox:
    """The tools, and which of them were run with what."""

    ran: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def run(self, name: str, arguments: Any) -> str:
        """Run a tool. Raises `UnknownCityError`."""
        assert set(arguments) == {"city"}, arguments
        return {"weather": self.weather, "clock": self.clock}[name](arguments["city"])

    def weather(self, city: str) -> str:
        """The weather in a city."""
        self.ran.append(("weather", city))
        if city == "Atlantis":
            raise UnknownCityError(RESULTS["weather", city].removeprefix("Error: "))
        return RESULTS["weather", city]

    def clock(self, city: str) -> str:
        """The time in a city."""
        self.ran.append(("clock", city))
        return RESULTS["clock", city]
