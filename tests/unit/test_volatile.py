"""Spans that clients change with each request: found as they were seen, and only those."""

from __future__ import annotations

import time

import pytest

from pyagent.core.messages import Message
from pyagent.infrastructure.engine.sessions.prompt_normalization import SPANS, NormalizedPrompt, normalize, with_moved

# As seen in the reports that `SPANS` name; each pair differs in what changes with a request.
SEEN = {
    "claude-code-billing": (
        "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;\n",
        "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=0aaa9;\n",
    ),
    "pi-clock": (
        "Current date and time: Monday, March 9, 2026 at 06:00:31 PM PDT\n",
        "Current date and time: Monday, March 9, 2026 at 06:00:32 PM PDT\n",
    ),
    "anything-llm-clock": (
        "The current date and time is Thursday, September 17, 2026 3:04 PM. ",
        "The current date and time is Thursday, September 17, 2026 3:05 PM. ",
    ),
    "nanobot-clock": (
        "## Current Time\n2026-02-06 12:34 (Friday)\n\n",
        "## Current Time\n2026-02-06 12:35 (Friday)\n\n",
    ),
    "goose-clock": ("The current date is 2025-05-04 12:34:56.\n", "The current date is 2025-05-04 12:34:59.\n"),
    "opencrabs-clock": ("Timestamp: 2026-07-20 12:34:56 UTC\n", "Timestamp: 2026-07-20 12:35:01 UTC\n"),
}
BEFORE, AFTER = "You are an agent.\n", "Be brief."


def conversation(span: str) -> list[Message]:
    return [
        Message("system", BEFORE + span + AFTER),
        Message("user", "hi"),
        Message("assistant", "so"),
        Message("user", "?"),
    ]


def test_every_span_was_seen() -> None:
    """Each pattern has an example that it was written for."""
    assert {span.name for span in SPANS} == set(SEEN)


@pytest.mark.parametrize("name", SEEN)
def test_requests_that_differ_in_a_span_have_equal_system_prompts(name: str) -> None:
    """Without the span both system prompts are one text; a clock's time stands behind the last question."""
    normalized = [normalize(conversation(span)) for span in SEEN[name]]
    action = next(span.action for span in SPANS if span.name == name)
    for one, span in zip(normalized, SEEN[name], strict=True):
        assert one.messages[0].text == BEFORE + AFTER
        assert one.names == (name,)
        last = with_moved(one)[-1].text
        assert last == ("?" if action == "drop" else f"?\n\n{span.strip()}")
        assert with_moved(one)[:-1] == one.messages[:-1]


def test_billing_line_goes_where_no_line_ends() -> None:
    """Clients that send their system prompt in parts have them joined without a line's end; only the line goes."""
    line = SEEN["claude-code-billing"][0].strip()
    assert normalize([Message("system", line + "You are Claude Code.")]).messages == [
        Message("system", "You are Claude Code.")
    ]


def test_message_of_nothing_but_a_span_goes_whole() -> None:
    """The places of those left are kept."""
    messages = [
        Message("system", SEEN["claude-code-billing"][0]),
        Message("system", "Be brief."),
        Message("user", "hi"),
    ]
    normalized = normalize(messages)
    assert normalized.messages == messages[1:]
    assert list(normalized.places) == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "Current date: 2026-06-09",
        "The current date is 2025-05-04.",
        "## Current Time\nAsk the tool `clock`.",
        "Say x-anthropic-billing-header: to nobody.",
        "",
    ],
)
def test_what_is_steady_stays(text: str) -> None:
    """Dates hold for a day, and talk about such lines is no such line."""
    messages = [Message("system", text), Message("user", "hi")]
    assert normalize(messages) == NormalizedPrompt.unchanged(messages)


def test_users_may_write_what_they_like() -> None:
    """Only system messages are touched."""
    messages = [Message("user", "".join(first for first, _ in SEEN.values()))]
    assert normalize(messages) == NormalizedPrompt.unchanged(messages)


def test_patterns_take_no_time_on_hostile_texts() -> None:
    """Texts made to send a pattern back and forth are looked through in milliseconds."""
    hostile = [
        "x-anthropic-billing-header:" + " a=b;" * 50_000,
        "x-anthropic-billing-header:" + " a=" + "b" * 200_000,
        "Current date and time: " + "1" * 200_000,
        "Current date and time: \n" * 20_000,
        "The current date and time is " * 20_000,
        "## Current Time\n\n" * 20_000 + "12:3",
    ]
    start = time.perf_counter()
    for text in hostile:
        normalize([Message("system", text), Message("user", "hi")])
    assert time.perf_counter() - start < 20, "a pattern that goes back and forth takes hours"
