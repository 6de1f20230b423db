"""How much work a step of llguidance's parser may be, for the engine's masks and for checks of whole answers alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

_MAX_STEP_ITEMS, _MAX_LEXER_STATES = 20_000, 50_000
"""A mask that needs more items would take longer than 100 ms of the engine's step; a state takes up to 2 kB."""


def parser_limits() -> LLParserLimits:
    """Return the bounds; what needs more ends with an error."""
    from llguidance import LLParserLimits

    return LLParserLimits(step_max_items=_MAX_STEP_ITEMS, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
