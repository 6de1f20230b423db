"""The wire between an engine's client and its process: other versions and bytes that are no message end in a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.installed import install
from support.native import engine_of, run

from pyagent.core.backends import collect
from pyagent.core.errors import BackendError, RequestError
from pyagent.core.messages import ChatRequest, Hint, Message, SamplingParams
from pyagent.core.prompt_cache import PinPrompt
from pyagent.infrastructure.engine.subprocess import child
from pyagent.infrastructure.engine.subprocess import supervisor as supervisor_module
from pyagent.infrastructure.engine.subprocess.protocol import HELLO, hello_codec
from pyagent.infrastructure.wire.codec import with_length
from pyagent.infrastructure.wire.hello import Hello

MAIN = [sys.executable, "-P", "-m", "pyagent.infrastructure.engine.subprocess.main"]
OUR_HELLO = with_length(hello_codec.encode(HELLO))


def ask(text: str = "the user") -> ChatRequest:
    sampling = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
    return ChatRequest(messages=[Message("user", text)], sampling=sampling)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "hung up after 0 of 4 bytes"),
        (b"\xff" * 64, "announced a message of 4294967295 bytes"),
        (with_length(b"GET / HTTP/1.1"), "sent what is no message of its protocol"),
        (with_length(hello_codec.encode(Hello("pyagent-engine", "0.0.1"))), "speaks 'pyagent-engine' version '0.0.1'"),
        (OUR_HELLO + with_length(b"\x81\xa1a\x01"), "sent what is no message of its protocol"),
        (OUR_HELLO + b"\0\0\1\0" + b"half", "hung up after 4 of 256 bytes"),
    ],
)
def test_process_started_by_anything_else_says_why_it_ends(data: bytes, reason: str) -> None:
    """Bytes on standard input that are no start of this version end the process with one line, not with a traceback."""
    ended = subprocess.run(MAIN, input=data, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert reason in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()


def test_upgraded_process_fails_requests_with_the_reason(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server that is older than the package on disk fails requests by name instead of misreading messages."""
    monkeypatch.setattr(child, "HELLO", Hello(HELLO.protocol, "0.0.1"))

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            with pytest.raises(BackendError, match="does not start"):
                await collect(backend.chat(ask()))

    run(work())
    assert "restart both with the same release of PyAgent" in capfd.readouterr().err


def test_process_of_another_version_is_not_used(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process whose hello is of another version gets no request."""
    monkeypatch.setattr(supervisor_module, "HELLO", Hello(HELLO.protocol, "9.9"))

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            with pytest.raises(
                BackendError, match=r"the engine's process speaks .* expected 'pyagent-engine' version '9.9'"
            ):
                await collect(backend.chat(ask()))

    run(work())


GARBLES = '''
"""Send bytes that are no message, once, in the middle of an answer, from the engine's own process."""
import sys
from pathlib import Path
from pyagent.core.hooks import hookimpl

if sys.argv[0].endswith("subprocess/main.py"):
    from pyagent.infrastructure.engine.subprocess.protocol import Outputs, from_engine
    marker, encode = Path(__file__).with_name("garble"), from_engine.encode

    def garble(message):
        if isinstance(message, Outputs) and marker.exists():
            marker.unlink()
            return b"\\xdd\\xff\\xff\\xff\\xff"
        return encode(message)

    from_engine.encode = garble

@hookimpl
def pyagent_register_queue_policies():
    return {}
'''


def test_process_that_sends_no_messages_is_replaced(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are no message cost the process its life and the answer nothing."""
    install(monkeypatch, tmp_path, "garbling", GARBLES)

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            expected = (await collect(backend.chat(ask()))).text
        async with engine_of(tiny_model_path) as backend:
            await backend.load()
            stream = backend.chat(ask())
            text = (await anext(stream)).content
            (tmp_path / "garble").touch()
            assert text + "".join([delta.content async for delta in stream]) == expected
            assert (await backend.engine_state()).num_restarts == 1

    run(work())
    assert "the engine's process sent what is no message of its protocol" in caplog.text


def test_what_cannot_be_sent_is_refused_and_nothing_else_fails(tiny_model_path: Path) -> None:
    """Lone surrogates of a program's texts are refused in requests and pins, dropped in hints; the engine goes on."""
    bad = ask("\ud800")

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            await backend.load()
            with pytest.raises(RequestError, match="cannot be sent to the engine"):
                await collect(backend.chat(bad))
            with pytest.raises(RequestError, match="cannot be sent to the engine"):
                await backend.query_cache(PinPrompt("p", bad))
            backend.hint(Hint(kind="retain", run="r", messages=bad.messages))
            assert (await collect(backend.chat(ask()))).text

    run(work())
