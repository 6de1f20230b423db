"""What the log has of requests: one line each at level info, and what failed on our side under the request's id."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.server import HI, Model, fault, post, words

from pyagent.core.errors import BackendError, ModelError, RequestError
from pyagent.core.messages import ChatDelta

SECRET = "sk-0123456789abcdef"
TEXT = "my diagnosis is flu"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "user": "ann"}


def records(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == name]


def test_each_request_is_one_line_without_text_or_key(caplog: pytest.LogCaptureFixture) -> None:
    """Request id, model, backend, tokens, times and status are told, of answers and refusals; no text and no key is."""
    caplog.set_level("INFO", "pyagent")
    backend = Model(lambda _: words("an", "swer", model="m", backend="test:m"))
    for stream in (False, True):
        headers = {"x-request-id": "req-1", "authorization": f"Bearer {SECRET}"}
        assert post(BODY | {"stream": stream}, backend, headers=headers).status_code == 200
    post(b"{" + TEXT.encode(), backend)
    post(BODY, backend, path=f"/v1/{TEXT}")
    lines = records(caplog, "pyagent.server.requests")
    assert [(line["path"], line["status"]) for line in lines] == [
        *[("/v1/chat/completions", "200")] * 2,
        ("/v1/chat/completions", "400"),
        ("other", "404"),
    ]
    for line in lines[:2]:
        assert (line["request_id"], line["method"]) == ("req-1", "POST")
        assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (3, 2, 2)
        assert 0 <= line["first_token_seconds"] <= line["seconds"]
        assert line["backend"] == "test:m"
    assert not any(secret in str(lines) + caplog.text for secret in (TEXT, SECRET))


def test_nothing_is_logged_of_good_requests_at_warning(caplog: pytest.LogCaptureFixture) -> None:
    """At the default level a request that is answered, or refused for its own fault, costs no line."""
    caplog.set_level("WARNING", "pyagent")
    assert post(BODY).status_code == 200
    assert post(BODY, Model(lambda _: [RequestError("no")])).status_code == 400
    assert records(caplog, "pyagent.server.requests") == []
    assert records(caplog, "pyagent.server") == []


def test_failures_are_logged_under_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    """500 and 502, whole and in a stream, are in the log by their kind; texts that may quote the request are not."""
    errors = [BackendError(f"upstream says: {TEXT}", backend="test:m"), ModelError("weights are gone", model="m")]
    for error, status, level in zip(errors, (502, 500), (logging.WARNING, logging.ERROR), strict=True):
        caplog.clear()
        assert post(BODY, Model(lambda _, error=error: [error]), headers={"x-request-id": "r1"}).status_code == status
        broken = Model(lambda _, error=error: [ChatDelta(content="x"), error])
        assert post(BODY | {"stream": True}, broken, headers={"x-request-id": "r2"}).status_code == 200
        lines = records(caplog, "pyagent.server")
        assert [(line["request_id"], line["status"], line["levelno"]) for line in lines] == [
            ("r1", status, level),
            ("r2", status, level),
        ]
        assert TEXT not in caplog.text


def test_folders_of_the_server_are_not_told() -> None:
    """An error names a file, not where it lies; addresses stay whole."""
    error = ModelError(f"{__file__}: truncated; see http://localhost/a/b and GET /v1/x/y", model="m")
    told = fault(post({"messages": HI}, Model(lambda _: [error])))["message"]
    assert told == "test_request_log.py: truncated; see http://localhost/a/b and GET /v1/x/y"
