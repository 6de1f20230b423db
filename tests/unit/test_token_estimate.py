"""About how many tokens there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.messages import ChatRequest, Message
from pyagent.core.token_estimate import estimated_prompt_tokens, estimated_request_tokens, estimated_tokens


@given(st.text(st.characters()), st.text(st.characters()))
def test_estimate_grows_with_the_text(text: str, more: str) -> None:
    """Any text, half a surrogate pair too, has an estimate; some text is never nothing, and more text is never less."""
    assert (estimated_tokens(text) > 0) == bool(text)
    assert estimated_tokens(text) <= estimated_tokens(text + more)
    assert estimated_prompt_tokens([Message("user", text)]) <= estimated_prompt_tokens([Message("user", text + more)])


@given(st.lists(st.text()))
def test_estimate_of_a_request_is_that_of_its_messages(texts: list[str]) -> None:
    """A budget and a chain see the same number for the same prompt."""
    messages = [Message("user", text) for text in texts]
    assert estimated_request_tokens(ChatRequest(messages=messages)) == estimated_prompt_tokens(messages)
