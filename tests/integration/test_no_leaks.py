"""Two keys ask at random, each with secrets in every place a text may stand; neither ever reads one of the other's."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from support.server import keys
from support.watching import logged

from pyagent.assembly import make_chain, make_host
from pyagent.core.config import load_settings
from pyagent.fleet import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

KEYS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-9876543210", "admin": "sk-admin-0123456789"}
SETTINGS = """chain = ["native", {{ use = "openai:{upstream}/v1#fake", headers = {{ x-api-key = "{upstream_key}" }} }}]
[response_cache]
keep = "determined"
[engine]
models = ["{model}"]
memory = "1GB"
threads = 1
process = {process}
eviction = "priority"
[paths]
data = "{data}"
"""
UPSTREAM_KEY = "upstream-key-that-nobody-reads"
VIEWS = (
    *("/pyagent/cache?limit=1000", "/pyagent/chain", "/pyagent/engine", "/pyagent/response_cache", "/metrics"),
    *("/health", "/ready", "/v1/models", "/api/tags", "/api/ps", "/openapi.json", "/v1/responses/resp_1"),
)
SYSTEMS = ("You are at the user's system.", "You are at the user's side, and it is on.")
Body = dict[str, Any]


async def _upstream(request: Request) -> Response:
    """An upstream that complains of what it is sent, at length: it quotes the request and its headers."""
    body = (await request.body()).decode()
    status = random.Random(body).choice([400, 401, 429, 500, 503])
    text = f"cannot do {body} with {request.headers.get('x-api-key')}"
    error = {"message": text, "type": "x", "code": "y"}
    return JSONResponse({"error": error}, status)


def _listed(_request: Request) -> Response:
    return JSONResponse(
        {"object": "list", "data": [{"id": "fake", "object": "model"}]}, headers={"connection": "close"}
    )


@dataclass
class Actor:
    """A client with a key, the secrets it has sent, and what it was ever told."""

    name: str
    http: httpx.Client
    chance: random.Random
    secrets: list[str] = field(default_factory=list[str])
    told: list[str] = field(default_factory=list[str])
    upstream: str = ""

    def secret(self) -> str:
        """A word that stands nowhere else."""
        word = "".join(self.chance.choices(string.ascii_lowercase, k=14))
        self.secrets.append(word)
        return word

    def text(self) -> str:
        """Something to say that ends in a secret, or begins with it: others begin alike, or go on alike."""
        words = self.chance.choice(["the user is on ", "it is ", "at "])
        return f"{words}{self.secret()}" if self.chance.random() < 0.7 else f"{self.secret()} {words}"

    def ask(self, method: str, path: str, body: Body | None = None) -> None:
        """Send a request and remember all that comes back."""
        answer = self.http.request(method, path, json=body)
        self.told.append(f"{answer.status_code} {answer.headers} {answer.text}")

    def step(self) -> None:
        """One request at random; now and then a look around."""
        self.chance.choice(STEPS)(self)
        if self.chance.random() < 0.2:
            self.ask("GET", self.chance.choice(VIEWS))
        if self.chance.random() < 0.2:  # what would be found of a beginning that the other has too?
            guess = [{"role": "system", "content": SYSTEMS[0]}, {"role": "user", "content": "the user is on "}]
            self.ask("POST", "/pyagent/cache/explain", {"messages": guess})

    def common(self) -> Body:
        """Fields that all of OpenAI's chat requests may have."""
        chance = self.chance
        body: Body = {"max_tokens": chance.randint(1, 4), "temperature": chance.choice([0, 1])}
        body |= chance.choice([{}, {"session": "s"}, {"session": self.secret()}, {"user": self.secret()}, {"n": 2}])
        body |= chance.choice([{}, {}, {"stream": True}, {"priority": chance.randint(-9, 9)}])
        return body | chance.choice(
            [{}] * 6 + [{"model": f"openai:{self.upstream}/v1#fake"}] * 3 + [{"model": self.secret()}]
        )

    def messages(self) -> list[Body]:
        """A conversation that shares its beginning with others'."""
        system = self.chance.choice(SYSTEMS) + self.chance.choice(["", f" {self.secret()}"])
        return [{"role": "system", "content": system}, {"role": "user", "content": self.text()}]


def _chat(actor: Actor) -> None:
    actor.ask("POST", "/v1/chat/completions", actor.common() | {"messages": actor.messages()})


def _chat_in_form(actor: Actor) -> None:
    word = actor.secret()
    schema = {"type": "object", "properties": {word: {"enum": [actor.secret(), word]}}, "required": [word]}
    tool = {"type": "function", "function": {"name": word, "description": actor.secret(), "parameters": schema}}
    form = actor.chance.choice(
        [
            {"response_format": {"type": "json_schema", "json_schema": {"name": word, "schema": schema}}},
            {"response_format": {"type": "choice", "choice": [word, actor.secret()]}},
            {"response_format": {"type": "choice", "choice": []}, "metadata": {"x": word}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": word, "schema": {"type": word}}}},
            {"tools": [tool]},
            {"tools": [tool], "tool_choice": "required"},
            {word: actor.secret()},
            {"stop": [word]},
            {"request_class": word},
        ]
    )
    actor.ask("POST", "/v1/chat/completions", actor.common() | {"messages": actor.messages(), "max_tokens": 30} | form)


def _completion(actor: Actor) -> None:
    actor.ask("POST", "/v1/completions", actor.common() | {"prompt": actor.text()})


def _messages(actor: Actor) -> None:
    system, user = actor.messages()
    body = {"model": "default", "max_tokens": 3, "system": system["content"], "messages": [user]}
    actor.ask("POST", actor.chance.choice(["/v1/messages", "/v1/messages/count_tokens"]), body)


def _ollama(actor: Actor) -> None:
    options = {"num_predict": 3}
    if actor.chance.random() < 0.5:
        actor.ask("POST", "/api/chat", {"model": "tiny", "messages": actor.messages(), "options": options})
    else:
        actor.ask("POST", "/api/generate", {"model": actor.secret(), "prompt": actor.text(), "options": options})


def _response(actor: Actor) -> None:
    body = {"model": "default", "input": actor.text(), "max_output_tokens": 3, "metadata": {"x": actor.secret()}}
    actor.ask("POST", "/v1/responses", body)


def _embeddings(actor: Actor) -> None:
    actor.ask("POST", "/v1/embeddings", {"model": f"openai:{actor.upstream}/v1#fake", "input": [actor.text()]})


def _agent(actor: Actor) -> None:
    agent, text = actor.chance.choice([("math", f"1 + {actor.secret()}"), ("code-health", f"/tmp/{actor.secret()}.py")])
    actor.ask(
        "POST", "/v1/chat/completions", {"model": f"agent:{agent}", "messages": [{"role": "user", "content": text}]}
    )


def _pin(actor: Actor) -> None:
    name = actor.secret()
    actor.ask("POST", "/pyagent/cache/pin", {"name": name, "messages": actor.messages()[:1]})
    actor.ask("GET", "/pyagent/cache")
    actor.ask("POST", "/pyagent/cache/unpin", {"name": name})


def _clear(actor: Actor) -> None:
    actor.ask("POST", "/pyagent/response_cache/clear", {})


STEPS: list[Callable[[Actor], None]] = [
    *(
        [_chat] * 5
        + [_chat_in_form] * 4
        + [_completion, _messages, _messages, _ollama, _ollama, _response, _embeddings]
    ),
    *(_agent, _pin, _clear),
]


@contextmanager
def _server(model: Path, folder: Path, process: str) -> Iterator[tuple[str, str]]:
    routes = [Route("/v1/models", _listed)]
    routes += [
        Route(f"/v1/{path}", _upstream, methods=["POST"]) for path in ("chat/completions", "completions", "embeddings")
    ]
    with serve(Starlette(routes=routes)) as upstream:
        file = folder / "pyagent.toml"
        text = SETTINGS.format(
            upstream=upstream, upstream_key=UPSTREAM_KEY, model=model, data=folder / "data", process=process
        )
        file.write_text(text, encoding="utf-8")
        settings = load_settings(file).settings
        host = make_host(settings)
        chain = make_chain(settings, host)
        agents = AgentBackend(lambda: Fleet(settings, backend=chain, host=host))
        known = keys(KEYS["alice"], KEYS["bob"], admin=KEYS["admin"])
        answering = create_app(chain, agents=agents, api_keys=known, settings=settings.server)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] != "/close":
                await answering(scope, receive, send)
                return
            await agents.close()
            await chain.close()  # in the loop its connections belong to
            await Response()(scope, receive, send)

        with serve(app) as url:
            try:
                yield url, upstream
            finally:
                httpx.post(f"{url}/close", timeout=60)


def _leaks(model: Path, folder: Path, num_requests: int, seed: int, process: str = "false") -> list[str]:
    """What one actor was told of another's secrets, or the log of anybody's, after so many requests."""
    with logged() as log, _server(model, folder, process) as (url, upstream):
        actors = [
            Actor(name, httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120),
                  random.Random(f"{seed} {name}"), upstream=upstream)
            for name, key in KEYS.items()
        ]  # fmt: skip
        clients = actors[:2]

        def work(actor: Actor) -> None:
            for _ in range(num_requests // 2):
                actor.step()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, clients))
        for actor in actors:
            for view in VIEWS:
                actor.ask("GET", view)
            actor.http.close()
        statuses = {text[:3] for actor in clients for text in actor.told}
        assert {"200", "400", "404"} <= statuses, statuses
    found = [f"the log has {word}" for actor in actors for word in actor.secrets if word in log.getvalue()]
    for actor in actors:
        others = [word for other in actors if other is not actor for word in other.secrets]
        everything = "\n".join(actor.told)
        found += [f"{actor.name} was told {word}: {_place(actor, word)}" for word in others if word in everything]
        found += [f"{actor.name} was told a key" for key in (*KEYS.values(), UPSTREAM_KEY) if key in everything]
    found += ["the log has a key" for key in (*KEYS.values(), UPSTREAM_KEY) if key in log.getvalue()]
    return found


def _place(actor: Actor, word: str) -> str:
    text = next(text for text in actor.told if word in text)
    at = text.index(word)
    return json.dumps(text[max(0, at - 300) : at + 100])


def test_no_key_reads_anothers_secret(tiny_model_path: Path, tmp_path: Path) -> None:
    """150 random requests of two keys over all APIs: no answer, header, list, metric, view or log line has a secret."""
    assert _leaks(tiny_model_path, tmp_path, 150, seed=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("process", ["false", "true"])
def test_no_key_reads_anothers_secret_in_a_thousand_requests(
    tiny_model_path: Path, tmp_path: Path, process: str
) -> None:
    """As above, with 1,000 requests, the engine in a process of its own too, and another seed each time (printed)."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert _leaks(tiny_model_path, tmp_path, 1000, seed, process) == []
