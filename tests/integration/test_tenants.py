"""One client of a server never reads another's text: not in answers, views, metrics or logs."""

from __future__ import annotations

import httpx
from support.server import Model, words
from support.watching import logged

from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

ALICE, BOB = "sk-alice-0123456789", "sk-bob-9876543210"
SECRET = "the launch code is 0000"


def asking(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_failure_tells_others_its_kind_and_not_its_text() -> None:
    """What one client's request broke is named to others by kind, status and type; the log has no text of it either."""
    quoting = Model(lambda request: [ValueError(f"cannot read {request.messages[-1].text}")])
    quoting.name = "quoting:1"
    upstream = Model(lambda request: [BackendError(f"bad: {request.messages[-1].text}", backend="up:1", status=500)])
    upstream.name = "up:1"
    chain = Chain([quoting, upstream, Model(lambda _: words("ok"))], retry_policy=RetryPolicy(num_retries=0))
    keys = [ALICE.encode(), BOB.encode()]
    with logged() as log, serve(create_app(chain, api_keys=keys)) as url:
        alice, bob = ({"authorization": f"Bearer {key}"} for key in (ALICE, BOB))
        told = [
            httpx.post(f"{url}/v1/chat/completions", json=asking(SECRET), headers=alice, timeout=30) for _ in range(3)
        ]
        assert SECRET in told[0].json()["attempts"][0]["reason"], "her own she may read"
        answer = httpx.post(f"{url}/v1/chat/completions", json=asking("hi"), headers=bob, timeout=30).json()
        views = [httpx.get(f"{url}{path}", headers=bob).text for path in ("/pyagent/chain", "/metrics", "/health")]
    reasons = [attempt["reason"] for attempt in answer["attempts"]]
    assert "left alone after: bug (ValueError)" in reasons[0]
    assert "left alone after: backend (HTTP 500)" in reasons[1]
    assert SECRET not in f"{answer}{views}{log.getvalue()}"


def test_a_bug_is_logged_without_the_text_it_quotes() -> None:
    """A foreign exception is logged by type and place; the request's text that it quotes is not."""
    broken = Model(lambda request: [ValueError(f"cannot read {request.messages[-1].text}")])
    with logged() as log, serve(create_app(broken)) as url:
        assert httpx.post(f"{url}/v1/chat/completions", json=asking(SECRET), timeout=30).status_code == 500
    assert "ValueError" in log.getvalue()
    assert "support/server.py" in log.getvalue()
    assert SECRET not in log.getvalue()
