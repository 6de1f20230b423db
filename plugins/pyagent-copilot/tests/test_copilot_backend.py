"""The Copilot backend against a program that writes what the real one writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyagent_copilot import make_backend
from pyagent_copilot.backend import CopilotBackend
from pyagent_copilot.events import Event, decode_event, prompt_of

from pyagent.plugin import (
    Answer,
    BackendError,
    CapacityError,
    ChatRequest,
    DeadlineError,
    LinkSpec,
    Message,
    PyAgentError,
    RequestError,
    SamplingParams,
    Settings,
    collect,
)

HELLO = ChatRequest(messages=[Message("user", "hi")])


def ask(program: str, request: ChatRequest = HELLO, **options: object) -> Answer:
    return asyncio.run(collect(CopilotBackend(program=program, **options).chat(request)))  # type: ignore[arg-type]


def test_answer_streams_and_is_counted(copilot: str) -> None:
    """The pieces arrive one by one; tokens are estimated, as the program counts none."""
    answer = ask(copilot)
    assert answer.text == "Hello from the stand-in."
    assert len(answer.deltas) == 5
    assert answer.last.model == "gpt-fake"
    assert answer.usage.completion_tokens == 6
    assert ask(copilot, model="gpt-5.2").last.model == "gpt-5.2"


def test_program_gets_no_shell_no_tools_and_an_empty_folder(
    copilot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt goes to standard input as it is; tools are off, whatever the environment allows."""
    monkeypatch.setenv("STAND_IN_RECORD", str(tmp_path / "told"))
    monkeypatch.setenv("COPILOT_ALLOW_ALL", "true")
    nasty = "$(touch /tmp/x); `id` 'quotes\" \u2028 --allow-all-tools"
    ask(copilot, ChatRequest(messages=[Message("system", "be brief"), Message("user", nasty)]))
    told = json.loads((tmp_path / "told").read_text())
    assert told["prompt"] == f"be brief\n\n{nasty}"
    assert told["cwd"] == []
    assert told["allow"] == ""
    assert "--available-tools=none" in told["argv"]
    assert not any("quotes" in word for word in told["argv"])


def test_conversation_is_told_in_turns() -> None:
    """Earlier turns carry the names of who spoke."""
    turns = [Message("user", "one"), Message("assistant", "two"), Message("user", "three")]
    text = prompt_of(ChatRequest(messages=[Message("developer", "be brief"), *turns]))
    assert text.startswith("be brief\n\nUser: one\n\nAssistant: two\n\nUser: three\n\n")


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("signed-out", BackendError, "is not signed in; sign in with: copilot login"),
        ("old", BackendError, "too old.*npm install"),
        ("crash", BackendError, "ended with status 3"),
        ("garbage", BackendError, "which is no event"),
        ("long", BackendError, "a line of over 4 MiB"),
        ("stall", BackendError, "wrote nothing for too long"),
        ("status-404", RequestError, "refused for a reason"),
        ("status-429", CapacityError, "refused"),
        ("status-401", BackendError, "copilot login"),
        ("status-500", BackendError, "refused"),
    ],
)
def test_each_failure_is_one_sentence(
    copilot: str, fault: str, kind: type[PyAgentError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the program does wrong becomes one error that says what to do."""
    monkeypatch.setenv("STAND_IN", fault)
    with pytest.raises(kind, match=says) as caught:
        ask(copilot, read_seconds=2.0 if fault == "stall" else 30.0)
    assert "\n" not in str(caught.value)


def test_noise_on_standard_error_holds_nothing_up(copilot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a megabyte of complaints does not block the program."""
    monkeypatch.setenv("STAND_IN", "noise")
    assert ask(copilot).text == "Hello from the stand-in."


@pytest.mark.parametrize("how", ["close", "cancel", "deadline"])
def test_leaving_ends_the_program_and_its_children(
    copilot: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed stream, a cancelled task and a deadline end the whole process group."""
    monkeypatch.setenv("STAND_IN", "child")
    monkeypatch.setenv("STAND_IN_CHILD", str(tmp_path / "pid"))

    async def main() -> None:
        stream = CopilotBackend(program=copilot).chat(ChatRequest(messages=HELLO.messages, timeout_seconds=5.0))
        assert (await anext(stream)).content == "Hello"
        rest = asyncio.ensure_future(anext(stream))
        if how == "deadline":
            with pytest.raises(DeadlineError):
                await rest
        else:
            await asyncio.sleep(0.05)
            rest.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await rest
        if how == "close":
            await stream.aclose()

    asyncio.run(main())
    child = int((tmp_path / "pid").read_text())
    for _ in range(3000):
        if not is_running(child):
            return
        time.sleep(0.01)
    raise AssertionError("the child of the program outlived it")


def is_running(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_absent_program_is_one_sentence() -> None:
    """Without the program, health and error say how to get it."""
    backend = make_backend(LinkSpec.parse("copilot:gpt-5.2"), Settings())
    assert backend.name == "copilot:gpt-5.2"
    absent = CopilotBackend(program="no-such-copilot")
    assert "npm install -g @github/copilot" in asyncio.run(absent.health()).detail
    with pytest.raises(BackendError, match="is not installed; install it with: npm") as caught:
        asyncio.run(collect(absent.chat(HELLO)))
    assert not caught.value.retryable


def test_what_it_has_no_way_to_do_is_refused(copilot: str) -> None:
    """Hints about sampling are left out by name; what changes an answer is refused, as is a model of another link."""
    hints = SamplingParams(temperature=0, top_p=0.5)
    answer = ask(copilot, ChatRequest(messages=HELLO.messages, sampling=hints))
    assert answer.usage.ignored == ("temperature", "top_p")
    with pytest.raises(BackendError, match="cannot do logit_bias"):
        ask(copilot, ChatRequest(messages=HELLO.messages, sampling=SamplingParams(logit_bias={1: 1.0})))
    with pytest.raises(RequestError, match="serves 'a', not 'b'"):
        ask(copilot, ChatRequest(model="b", messages=HELLO.messages), model="a")


@given(st.binary(max_size=100) | st.from_regex(rb'\{"(type|data|exitCode)": .{0,30}\}', fullmatch=True))
def test_any_line_is_an_event_or_an_error(line: bytes) -> None:
    """No line, however broken, raises anything but PyAgent's own errors."""
    with contextlib.suppress(PyAgentError):
        assert isinstance(decode_event(line, "copilot"), Event)
