"""One client of a server never reads another's text: not in answers, views, metrics or logs."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import Model, keys, words
from support.watching import logged

from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.memory.evictions import BUILT_IN
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.uvicorn_server import Complaints
from pyagent.testing import serve

ALICE, BOB = "sk-alice-0123456789", "sk-bob-9876543210"
ADMIN = "sk-admin-0123456789"
SECRET = "the launch code is zebra"
VIEWS = (
    *("/pyagent/cache", "/pyagent/engine", "/pyagent/chain", "/metrics", "/health", "/ready"),
    *("/v1/models", "/api/ps", "/api/tags"),
)
SYSTEM = "You are at the user's system, and it is on, and the user is at ease. " * 3


@pytest.fixture(scope="module")
def url(tiny_model_path: Path) -> Iterator[str]:
    options = EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 20))
    backend = NativeBackend.of("tiny", lambda: tiny_model_path, options)
    try:
        with serve(
            create_app(Chain([backend], private=["tiny", "native"]), api_keys=keys(ALICE, BOB, admin=ADMIN))
        ) as served:
            yield served
    finally:
        asyncio.run(backend.close())


@pytest.fixture
def alice(url: str) -> Iterator[httpx.Client]:
    with client_of(url, ALICE) as client:
        yield client


@pytest.fixture
def bob(url: str) -> Iterator[httpx.Client]:
    with client_of(url, BOB) as client:
        yield client


@pytest.fixture
def admin(url: str) -> Iterator[httpx.Client]:
    with client_of(url, ADMIN) as client:
        yield client


def client_of(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)


def chat(http: httpx.Client, text: str, system: str = SYSTEM, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0} | more
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def asking(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_failure_tells_others_its_kind_and_not_its_text() -> None:
    """What one client's request broke is named to others by kind, status and type; the log has no text of it either."""
    quoting = Model(lambda request: [ValueError(f"cannot read {request.messages[-1].text}")])
    quoting.name = "quoting:1"
    upstream = Model(lambda request: [BackendError(f"bad: {request.messages[-1].text}", backend="up:1", status=500)])
    upstream.name = "up:1"
    chain = Chain([quoting, upstream, Model(lambda _: words("ok"))], retry_policy=RetryPolicy(num_retries=0))
    with logged() as log, serve(create_app(chain, api_keys=keys(ALICE, BOB))) as url:
        alice, bob = ({"authorization": f"Bearer {key}"} for key in (ALICE, BOB))
        told = [
            httpx.post(f"{url}/v1/chat/completions", json=asking(SECRET), headers=alice, timeout=30) for _ in range(3)
        ]
        assert SECRET in told[0].json()["attempts"][0]["reason"], "her own she may read"
        answer = httpx.post(f"{url}/v1/chat/completions", json=asking("hi"), headers=bob, timeout=30).json()
        views = [httpx.get(f"{url}{path}", headers=bob).text for path in VIEWS]
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


def test_a_prompt_of_another_key_is_not_found_computed(alice: httpx.Client, bob: httpx.Client) -> None:
    """Exactly another's prompt has 0 cached tokens, its miss tells nothing of it; one's own is found."""
    text = f"{SECRET}, please remember it"
    chat(alice, text, private=True, session="alice's session")
    assert cached(chat(alice, text)) > 0
    first = chat(bob, text)
    assert cached(first) == 0
    assert "miss" not in first["usage"]["cache"]
    shorter = chat(bob, "x", system=SYSTEM[:-4])
    assert "remember" not in str(shorter)


def test_views_are_of_ones_own_prompts(alice: httpx.Client, bob: httpx.Client, admin: httpx.Client) -> None:
    """The cache, its explanations, pins and sessions show a key what is its own; administrators see counts."""
    system = f"quokka {SYSTEM}"
    chat(alice, SECRET, system, session="alice-session")
    pin = {"name": "alice-pin", "messages": [{"role": "system", "content": system}]}
    assert alice.post("/pyagent/cache/pin", json=pin).status_code == 200
    own = alice.get("/pyagent/cache").json()[0]
    assert own["pins"].keys() == {"alice-pin"}
    assert "alice-session" in str(own["prompts"])
    asked = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": f"{SECRET[:-5]}koala"}]}
    for other in (bob, admin):
        told = "".join(other.get(path).text for path in VIEWS)
        explained = other.post("/pyagent/cache/explain", json=asked).text
        for text in ("alice", "zebra", "quokka"):
            assert text not in told
        assert "zebra" not in explained
        assert other.post("/pyagent/cache/unpin", json={"name": "alice-pin"}).status_code == 404
    assert admin.get("/pyagent/cache").json()[0]["pages"]["pinned_pages"] > 0
    assert alice.post("/pyagent/cache/unpin", json={"name": "alice-pin"}).status_code == 200


def test_no_view_tells_how_much_another_asks(alice: httpx.Client, bob: httpx.Client, admin: httpx.Client) -> None:
    """What one key may look at is the same before and after another's requests; totals are an administrator's."""

    def seen() -> dict[str, tuple[int, str]]:
        answers = {path: alice.get(path) for path in VIEWS}
        own = re.compile(r'"idle_seconds":[^,]*|pyagent_key_requests_(?:total|created)\{.*')
        return {path: (answer.status_code, own.sub("", answer.text)) for path, answer in answers.items()}

    def counted() -> str:
        return admin.get("/metrics").text + admin.get("/pyagent/cache").text

    chat(alice, "hi")
    before, counts = seen(), counted()
    for number in range(3):
        chat(bob, f"{number} and what else is on", system=f"bob's {SYSTEM}")
    assert seen() == before
    assert counted() != counts
    assert [before[path][0] for path in VIEWS[:4]] == [200, 403, 403, 200]
    assert admin.get("/pyagent/engine").json()
    assert admin.get("/pyagent/chain").json()


def test_a_session_belongs_to_its_key(alice: httpx.Client, bob: httpx.Client) -> None:
    """The same session name of two keys is two conversations: neither log nor text passes between them."""
    first = chat(alice, SECRET, session="s")["choices"][0]["message"]["content"]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": SECRET},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "and?"},
    ]
    body = {"messages": messages, "max_tokens": 4, "session": "s"}
    reports = [http.post("/v1/chat/completions", json=body).json()["usage"]["cache"] for http in (bob, alice)]
    assert [report.get("log_tokens", 0) > 0 for report in reports] == [False, True]


def test_what_an_administrator_shares_is_found_by_all(
    alice: httpx.Client, bob: httpx.Client, admin: httpx.Client
) -> None:
    """A shared system prompt is computed once for all keys; what each says after it stays its own."""
    system = "The system is on, and the user is at the system's side of it. " * 3
    pin = {"name": "common", "messages": [{"role": "system", "content": system}], "shared": True}
    assert alice.post("/pyagent/cache/pin", json=pin).status_code == 403
    assert admin.post("/pyagent/cache/pin", json=pin).status_code == 200
    assert "common" in admin.get("/pyagent/cache").json()[0]["pins"]
    assert "common" not in alice.get("/pyagent/cache").json()[0]["pins"]
    found = cached(chat(alice, SECRET, system))
    assert found >= 32
    again, other = cached(chat(alice, SECRET, system)), cached(chat(bob, SECRET, system))
    assert again > other
    assert other == found
    assert bob.post("/pyagent/cache/unpin", json={"name": "common", "shared": True}).status_code == 403
    assert admin.post("/pyagent/cache/unpin", json={"name": "common", "shared": True}).status_code == 200


def test_clients_do_not_run_the_server(alice: httpx.Client, admin: httpx.Client) -> None:
    """What stops, empties or fills the server for everybody is refused to a client's key and done for an admin's."""
    refused = [alice.post(f"/pyagent/engine/{what}", json={}) for what in ("drain", "sleep", "wake")] + [
        alice.post("/api/pull", json={"model": "x"}),
        alice.post("/api/chat", json={"model": "tiny", "keep_alive": 0}),
    ]
    assert [answer.status_code for answer in refused] == [403] * 5
    assert refused[0].json()["error"]["code"] == "admin_key_needed"
    assert chat(alice, "hi")["choices"]
    assert admin.post("/pyagent/engine/drain", json={"grace_seconds": 5}).status_code == 200
    assert admin.post("/pyagent/engine/wake", json={}).status_code == 200
    assert chat(alice, "hi")["choices"]


def test_a_key_is_counted_by_its_name(alice: httpx.Client, admin: httpx.Client) -> None:
    """Requests and tokens of each key are in the metrics by name: of all for administrators, else one's own."""
    chat(alice, "hi")
    assert 'pyagent_key_requests_total{key="key 1",status="200"}' in admin.get("/metrics").text
    assert 'pyagent_key_tokens_total{key="key 1"}' in admin.get("/metrics").text
    told = alice.get("/metrics").text
    assert 'pyagent_key_tokens_total{key="key 1"}' in told
    assert "pyagent_http_requests_total" not in told
    assert set(re.findall('key="([^"]*)"', told)) == {"key 1"}


def test_priority_decides_what_the_cache_keeps(tiny_model_path: Path) -> None:
    """With `engine.eviction = "priority"` prompts of urgent requests outlive those of patient ones asked later."""
    options = EngineOptions(RunnerOptions(threads=1, kv_bytes=40 * 4096, eviction=BUILT_IN["priority"]))
    backend = NativeBackend.of("tiny", lambda: tiny_model_path, options)
    with serve(create_app(Chain([backend]))) as url, client_of(url, ALICE) as http:
        urgent = "the user is on it, and " * 4
        chat(http, "x", system=urgent, priority=-1000)
        found = cached(chat(http, "x", system=urgent, priority=-1000))
        for number in range(12):
            chat(http, "x", system=f"number {number} is at the user's, and it is so, " * 3, priority=1000)
        evicted = sum(http.get("/pyagent/cache").json()[0]["pages"]["evictions"].values())
        assert evicted > 0
        assert cached(chat(http, "x", system=urgent)) == found
    asyncio.run(backend.close())


def test_the_event_loop_complains_without_the_texts_of_exceptions() -> None:
    """A task whose exception nobody asked for is logged by type and place; asyncio's own line would quote it."""

    async def fail() -> None:
        raise ValueError("".join(("the launch ", "code")))

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(Complaints())
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect()

    with logged() as log:
        asyncio.run(work())
    assert "ValueError" in log.getvalue()
    assert "exception was never retrieved" in log.getvalue()
    assert "the launch code" not in log.getvalue()
