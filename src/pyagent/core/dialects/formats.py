"""The built-in dialects. The first of them that matches a chat template is chosen, so the specific ones come first."""

from __future__ import annotations

from pyagent.core.dialects.dialect import Dialect, TagDialect
from pyagent.core.dialects.json_calls import JsonCalls

HERMES = TagDialect(
    name="hermes",
    models="Hermes 2 and 3, Qwen 2.5, Qwen 3, QwQ, Granite 4, SmolLM 3",
    clues=("<tool_call>",),
    calls=JsonCalls("<tool_call>\n", ("\n</tool_call>",)),
)

DIALECTS: tuple[Dialect, ...] = (HERMES,)
