"""Logs: their shape, what is struck out, and what is said once."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from pyagent.infrastructure.observability.logging import (
    Format,
    Level,
    configure_logging,
    redact,
)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("pyagent")
    before = (list(root.handlers), root.level, ours.level)
    root.handlers.clear()  # a command run in this process may have left one that waits for the first record
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    structlog.reset_defaults()


def _configured(level: Level = "info", shape: Format = "json") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(level, shape, stream)
    return stream


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_standard_and_structured_loggers_have_one_shape() -> None:
    """A record of the standard library comes out as an event of structlog does, with its extra fields."""
    stream = _configured()
    logging.getLogger("pyagent.plugins").warning("plugin %s is odd", "haiku", extra={"plugin": "haiku"})
    structlog.stdlib.get_logger("pyagent.engine").info("loaded", seconds=0.2)
    first, second = _lines(stream)
    assert (first["event"], first["plugin"], first["level"]) == ("plugin haiku is odd", "haiku", "warning")
    assert (second["event"], second["seconds"], second["logger"]) == ("loaded", 0.2, "pyagent.engine")
    assert first.keys() - {"plugin"} == second.keys() - {"seconds"}


def test_level_applies_to_pyagent_and_warnings_to_others() -> None:
    """At debug level PyAgent says everything, other libraries still only their warnings."""
    stream = _configured("debug")
    logging.getLogger("pyagent.engine").debug("ours")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("httpx").warning("their warning")
    assert [line["event"] for line in _lines(stream)] == ["ours", "their warning"]


def test_configuring_twice_replaces() -> None:
    """The second configuration takes the place of the first; nothing is written twice."""
    first, second = _configured(), _configured(shape="console")
    logging.getLogger("pyagent").warning("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"api_key": "abcdefgh"},
        {"authorization": "Basic dXNlcjpwYXNz"},
        {"headers": {"Authorization": "abcdefgh", "x-api-key": "abcdefgh"}},
        {"text": "sent Authorization: Bearer abcdefgh.xyz"},
        {"keys": ["sk-abcdefgh12345", {"token": "abcdefgh"}]},
        {"url": "http://user:abcdefgh@host/v1"},
    ],
)
@pytest.mark.parametrize("shape", ["console", "json"])
def test_secrets_are_struck_out(fields: dict[str, object], shape: Format) -> None:
    """A secret is struck out wherever it stands: by its field's name or by its look, also deep inside."""
    stream = _configured(shape=shape)
    structlog.stdlib.get_logger("pyagent").info("asked", **fields)
    said = stream.getvalue()
    assert "[redacted]" in said
    assert "abcdefgh" not in said
    assert "dXNlcjpwYXNz" not in said


@pytest.mark.parametrize("shape", ["console", "json"])
def test_tracebacks_have_types_and_places_but_no_texts(shape: Format) -> None:
    """The texts of an exception and of its causes may quote a request: only their types and places are logged."""
    stream = _configured(shape=shape)
    words = "".join(("the ", "diagnosis"))  # the lines of a program are shown, values are not
    try:
        try:
            int(words)
        except ValueError as error:
            raise RuntimeError(words) from error
    except RuntimeError:
        logging.getLogger("pyagent").exception("failed")
    said = stream.getvalue()
    assert words not in said
    assert said.index("ValueError") < said.index("RuntimeError")
    assert "test_logging.py" in said


def test_failures_of_the_system_say_why() -> None:
    """What the operating system said of its own failure is no client's text."""
    stream = _configured(shape="console")
    try:
        raise OSError(28, "No space left on device", "somebody's name")  # noqa: TRY301 - as the system raises it
    except OSError:
        logging.getLogger("pyagent").exception("failed")
    assert "OSError: No space left on device" in stream.getvalue()


def test_counts_of_tokens_are_no_secrets() -> None:
    """Numbers of tokens and the names of key files stay readable."""
    fields: dict[str, object] = {
        "num_tokens": 3,
        "tokens": 5,
        "max_num_batched_tokens": 512,
        "api_keys_file": "keys.txt",
    }
    assert redact(None, "info", dict(fields)) == fields


def test_control_characters_are_escaped() -> None:
    """Text from outside cannot steer the terminal that shows the log."""
    stream = _configured(shape="console")
    logging.getLogger("pyagent").warning("model said \x1b[2J%s", "\x9b31m")
    assert "\x1b" not in stream.getvalue()
    assert "\x9b" not in stream.getvalue()


@given(
    st.dictionaries(st.text(max_size=8), st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=6))
)
def test_any_fields_are_written(fields: dict[str, object]) -> None:
    """No field makes the log fail, and none of them disappears."""
    assert redact(None, "info", fields).keys() == fields.keys()
