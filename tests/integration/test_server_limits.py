"""How much a key may ask, and how it is told."""

from __future__ import annotations

import httpx
from support.server import HI, KEY, Model, keys

from pyagent.core.settings import Server
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

OTHER = "sk-another-key-of-16"
ASKED = {"model": "m", "messages": HI}


def test_server_limits_each_key() -> None:
    """A key that has used its requests is refused with when to try again, in the shape of the API; others go on."""
    settings = Server(requests_per_minute=2)
    with (
        serve(create_app(Model(), api_keys=keys(KEY, OTHER), settings=settings)) as url,
        httpx.Client(base_url=url) as http,
    ):
        mine, theirs = {"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {OTHER}"}
        first = http.post("/v1/chat/completions", json=ASKED, headers=mine)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert 29 < float(first.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 30
        assert http.post("/api/chat", json=ASKED, headers=mine).status_code == 200
        refused = http.post("/v1/chat/completions", json=ASKED, headers=mine)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 25 <= int(refused.headers["retry-after"]) <= 30
        assert "2 requests a minute" in http.post("/api/chat", json=ASKED, headers=mine).json()["error"]
        anthropic = http.post("/v1/messages", json=ASKED, headers=mine).json()
        assert anthropic["error"]["type"] == "rate_limit_error"
        assert http.get("/v1/models", headers=mine).status_code == 200
        assert http.post("/v1/chat/completions", json=ASKED, headers=theirs).status_code == 200


def test_server_limits_tokens() -> None:
    """Tokens are counted when an answer is whole; who has overdrawn waits until it is made good."""
    with serve(create_app(Model(), settings=Server(tokens_per_minute=8))) as url, httpx.Client(base_url=url) as http:
        asked = [http.post("/v1/chat/completions", json=ASKED | {"stream": True}) for _ in range(3)]
        assert [answer.status_code for answer in asked] == [200, 200, 429], "5 tokens an answer"
        assert [answer.headers["x-ratelimit-remaining-tokens"] for answer in asked] == ["8", "3", "0"]


def test_server_without_limits_tells_none() -> None:
    """No limit, no header."""
    with serve(create_app(Model())) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=ASKED)
        assert not any(name.startswith("x-ratelimit") for name in answer.headers)
