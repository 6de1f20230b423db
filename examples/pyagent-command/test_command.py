import asyncio

import pytest
from pyagent_command import CommandBackend

from pyagent.plugin import Answer, BackendError, ChatRequest, LinkSpec, Message, collect


def ask(program: str, text: str) -> Answer:
    request = ChatRequest(messages=[Message("user", text)])
    return asyncio.run(collect(CommandBackend(LinkSpec("command", program)).chat(request)))


def test_answer_is_what_the_program_writes():
    """The prompt reaches the program, and its output comes back as it is."""
    answer = ask("cat", "Grüße, 雨")
    assert answer.text == "Grüße, 雨"
    assert answer.last.finish_reason == "stop"


def test_failing_program_is_a_backend_error():
    """A status other than 0 is told, so that a chain goes on to its next link."""
    with pytest.raises(BackendError, match="status 1"):
        ask("false", "hello")


def test_missing_program_is_not_ready():
    """Health says what is missing, without raising."""
    health = asyncio.run(CommandBackend(LinkSpec("command", "no-such-program")).health())
    assert not health.is_ready
