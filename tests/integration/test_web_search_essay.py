"""The agent web-search-essay over a small web of this machine: three search APIs, contradictions, and hostile pages."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.command_line import fresh_environment, pyagent
from support.server import Model, keys
from support.web_site import Web

from pyagent.assembly import make_host
from pyagent.core.config import load_settings
from pyagent.core.errors import AgentError, BackendError, ConfigError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.events import Progress, RunFinished
from pyagent.core.fleet.replay_check import ReplayReport
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import ChatRequest
from pyagent.core.web_search import SearchHit
from pyagent.fleet import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.web import tools as web_tools
from pyagent.infrastructure.web.fetching import FetchLimits
from pyagent.logic.agents.web_search_essay import Essay
from pyagent.testing import ScriptedBackend, serve

TOPIC = "the Harbour Tower of Velm"
GOOD = ["/guide", "/guide?utm_source=x#top", "/almanac", "/travel", "/facts", "/copy", "/secret/plan", "/ferries"]


@pytest.fixture(scope="module")
def web() -> Web:
    return Web(GOOD)


@pytest.fixture(scope="module")
def url(web: Web) -> Iterator[str]:
    with serve(web.app()) as served:
        yield served


def echo(request: ChatRequest) -> str:
    """A model that joins notes, and adds what no source says."""
    text = request.messages[-1].text
    if text.startswith("Topic:"):
        return "Velm tower architecture\nweather tomorrow"
    notes = re.findall(r"Note \d+: (.*)", text)
    return " ".join([*notes, "It is the tallest tower in the world [7]."])


def fleet(tmp_path: Path, backend: ScriptedBackend | None = None, **settings: Any) -> Fleet:
    given = {"paths.data": str(tmp_path), "web.provider": "searxng", "web.private": True, **settings}
    return Fleet(load_settings(overrides=given).settings, backend=backend or ScriptedBackend(echo))


def essay(made: Fleet, topic: str = TOPIC, *, is_private: bool = False, **arguments: object) -> tuple[Essay, list[str]]:
    """The essay, and the lines of progress."""
    lines: list[str] = []

    async def main() -> Essay:
        task = Task(text=topic, arguments=arguments)
        async with made:
            async for event in made.run(task, agent="web-search-essay", is_private=is_private):
                if isinstance(event, Progress):
                    lines.append(event.text)
                if isinstance(event, RunFinished) and isinstance(event.output, Essay):
                    return event.output
        raise AssertionError(lines)

    return asyncio.run(main()), lines


def call(made: Fleet, tool: str, **arguments: object) -> Any:
    """What a tool of the fleet returns in a run."""
    return calls(made, tool, [arguments])[0]


def calls(made: Fleet, tool: str, arguments: list[dict[str, object]]) -> Any:
    """What several calls of a tool return in one run."""

    class Caller:
        name, description = "caller", "Calls a tool."

        async def run(self, context: Any, task: Task) -> object:
            return [await context.call_tool(tool, each) for each in arguments]

    async def main() -> Any:
        given = Fleet(made.settings, backend=ScriptedBackend(echo), agents=[Caller()], host=made.host)
        async with given:
            return await given.run_agent("caller", "go")

    return asyncio.run(main())


def test_essay_checks_facts_and_cites(tmp_path: Path, web: Web, url: str) -> None:
    """Several queries, each page once, contradictions with quotes of both sides, and citations that resolve."""
    web.queries.clear()
    made, lines = essay(fleet(tmp_path, **{"web.url": url}))
    assert len(web.queries) == len(made.queries) == 5
    assert made.queries[-1] == "Velm tower architecture"
    assert [each.url.removeprefix(url) for each in made.sources] == [
        "/guide",
        "/almanac",
        "/travel",
        "/facts",
        "/ferries",
    ]
    assert {each.url.removeprefix(url): each.reason.split(" of ")[0] for each in made.skipped} == {
        "/copy": "its text is that",
        "/secret/plan": "robots.txt",
    }
    disputed = {
        check.about.rpartition(": ")[2]: [c.value for c in check.claims]
        for check in made.checks
        if check.verdict == "disagree"
    }
    assert disputed["height"] == ["330 metres", "1,083 feet", "300 m"]
    assert disputed["opened"] == ["1911", "1913"]
    assert "“The Velm tower was not built with granite from local quarries.” [2]" in made.text
    assert [check.about.rpartition(": ")[2] for check in made.checks if check.verdict == "agree"] == ["weight"]
    body, _, listed = made.text.partition("## Sources\n")
    assert set(re.findall(r"\[(\d+)\]", body)) <= set(re.findall(r"^\[(\d+)\]", listed, re.MULTILINE))
    assert f"[1] Ada Brandt: The Harbour Tower of Velm. {url}/guide (accessed 20" in listed
    assert "tallest" not in made.text
    assert made.num_dropped == len(made.paragraphs)
    assert any(line.startswith("searching: ") for line in lines)


def test_quotes_are_on_the_pages(tmp_path: Path, url: str) -> None:
    """Each quote of a claim is in the page as it is read, character by character at its place."""
    made = fleet(tmp_path, **{"web.url": url})
    found, _ = essay(made, wording="sources")
    pages = calls(made, "read_web_page", [{"url": each.url} for each in found.sources])
    claims = [claim for check in found.checks for claim in check.claims]
    assert len(claims) >= 8
    for claim in claims:
        text = pages[claim.source - 1].text
        assert text[claim.start : claim.start + len(claim.quote)] == claim.quote


def test_hostile_page_does_not_reach_the_model(tmp_path: Path, url: str) -> None:
    """Instructions on a page, and words that people do not see, are in no prompt and not in the essay; it is told."""
    backend = ScriptedBackend(echo)
    made, lines = essay(fleet(tmp_path, backend, **{"web.url": url}), style="blog")
    prompts = "\n".join(message.text for request in backend.requests for message in request.messages)
    for words in ("aliens", "previous instructions", "cheese", "ghost", "floats", "sings"):
        assert words not in prompts + made.text
    assert "212 oak piles" in made.text
    assert made.sources[3].num_withheld == 1
    assert any("withheld" in line and "override" in line for line in lines)


def test_no_provider_is_asked_by_itself(tmp_path: Path, url: str) -> None:
    """Without a setting nothing is searched, and one sentence says how to choose; a provider misspelt is named."""
    for name, told in (("searxng", "needs web.url"), ("brave", "needs web.key"), ("serxng", "did you mean 'searxng'")):
        with pytest.raises(ConfigError, match=told):
            fleet(tmp_path, **{"web.provider": name})
    with pytest.raises(RequestError, match="no search provider is set"):
        asyncio.run(fleet(tmp_path, **{"web.provider": ""}).run_agent("web-search-essay", TOPIC))


@pytest.mark.parametrize(
    ("provider", "path"), [("searxng", ""), ("mediawiki", "/w/api.php"), ("brave", "/res/v1/web/search")]
)
def test_providers_speak_their_wires(
    provider: str, path: str, tmp_path: Path, web: Web, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each provider asks as its server wants it, and returns the results in their order, as plain words."""
    monkeypatch.setenv("SEARCH_KEY", "right-key")
    given = {"web.provider": provider, "web.url": url + path, "web.key": "env:SEARCH_KEY"}
    hits = call(fleet(tmp_path, **given), "web_search", query="Käse & tower?", limit=3)
    assert [hit.url for hit in hits] == [url + each for each in GOOD[:3]]
    assert all(isinstance(hit, SearchHit) and "<" not in hit.title + hit.snippet for hit in hits)
    assert web.queries[-1] == "Käse & tower?"


def test_failing_search_is_told_without_the_key(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong key, a wrong address and a server that gives no JSON are one sentence each, without key or query."""
    monkeypatch.setenv("SEARCH_KEY", "wrong-key-123")
    brave = {"web.provider": "brave", "web.url": f"{url}/res/v1/web/search", "web.key": "env:SEARCH_KEY"}
    for given, told in (
        (brave, "status 422; look at web.key"),
        ({"web.provider": "searxng", "web.url": f"{url}/w"}, "status 404; allow `json`"),
        ({"web.provider": "mediawiki", "web.url": f"{url}/guide"}, "no answer of mediawiki"),
        ({"web.provider": "searxng", "web.url": "http://127.0.0.1:9"}, "cannot be read"),
        ({**brave, "web.key": "env:NO_SUCH_KEY"}, "web.key is to be one printable line of env:NO_SUCH_KEY"),
    ):
        with pytest.raises((BackendError, ConfigError), match=told) as error:
            call(fleet(tmp_path, **given), "web_search", query="secret words")
        assert "wrong-key" not in str(error.value)
        assert "secret words" not in str(error.value)


def test_private_addresses_are_not_read(tmp_path: Path, url: str) -> None:
    """By default no page of this machine or its network is read: not by address, name, nor after a redirect."""
    made = fleet(tmp_path, **{"web.url": url, "web.private": False})
    port = url.rpartition(":")[2]
    for target in (f"{url}/guide", f"http://localhost:{port}/guide", f"http://[::ffff:127.0.0.1]:{port}/guide"):
        with pytest.raises((RequestError, BackendError), match=r"not public|cannot be read|no program"):
            call(made, "read_web_page", url=target)
    for target in ("file:///etc/passwd", "ftp://x/", "http://u:p@x/", "http://"):
        with pytest.raises(RequestError, match="no http"):
            call(made, "read_web_page", url=target)
    with pytest.raises(AgentError, match="no page that was found can be read"):
        essay(made, wording="sources")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/loop", "redirects more than 5 times"),
        ("/image", "image/png, and no text"),
        ("/binary", "it is no text"),
        ("/missing", "status 404"),
        ("/to-secret", "lets no program read this page"),
        ("/slow", "did not answer within 2 s"),
    ],
)
def test_page_that_cannot_be_read_says_why(
    path: str, told: str, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endless redirects, other types, drops that never end, and what robots.txt forbids end soon, with a reason."""
    monkeypatch.setattr(web_tools, "_PAGE_LIMITS", FetchLimits(max_bytes=1_000_000, seconds=2.0))
    begun = time.monotonic()
    with pytest.raises((RequestError, BackendError), match=told):
        call(fleet(tmp_path, **{"web.url": url}), "read_web_page", url=url + path)
    assert time.monotonic() - begun < 15


def test_huge_and_odd_pages_are_bounded(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb of gzip, a page without end, tags 5,000 deep, a wrong charset and plain text are read within bounds."""
    monkeypatch.setattr(web_tools, "_PAGE_LIMITS", FetchLimits(max_bytes=50_000))
    made = fleet(tmp_path, **{"web.url": url})
    *huge, ferries, plain = calls(
        made, "read_web_page", [{"url": url + path} for path in ("/bomb", "/endless", "/ferries", "/plain")]
    )
    for page in huge:
        assert page.is_cut
        assert len(page.text) <= 50_000
    assert ferries.text.startswith("Ferries to the Harbour Tower of Velm leave from the Café Ångström")
    assert "blue silk" in plain.text
    with pytest.raises(RequestError, match="it has no text"):
        call(made, "read_web_page", url=f"{url}/deep")


def test_private_run_does_not_search(tmp_path: Path, web: Web, url: str) -> None:
    """A private run asks no other machine: the search is refused in a sentence, and nothing was sent."""
    web.queries.clear()
    with pytest.raises(RequestError, match=r"the run is private.*run it without `private`"):
        essay(fleet(tmp_path, **{"web.url": url}), is_private=True)
    assert not web.queries


@pytest.mark.parametrize(
    "arguments", [{"style": "poem"}, {"sources": 0}, {"sources": "6"}, {"queries": 99}, {"lang": "de"}]
)
def test_bad_arguments_are_refused(arguments: dict[str, object], tmp_path: Path, url: str) -> None:
    """Another style, number or name is refused before anything is searched."""
    with pytest.raises(RequestError, match="arguments are not"):
        asyncio.run(
            fleet(tmp_path, **{"web.url": url}).run_agent("web-search-essay", Task(text="x", arguments=arguments))
        )


def test_command_line_writes_an_essay(tmp_path: Path, url: str) -> None:
    """`pyagent agent web-search-essay "..." --style news --json` gives the essay, its checks and its sources."""
    env = fresh_environment(tmp_path) | {
        "PYAGENT_WEB__PROVIDER": "searxng",
        "PYAGENT_WEB__URL": url,
        "PYAGENT_WEB__PRIVATE": "true",
        "PYAGENT_CHAIN": "openai:http://127.0.0.1:9/v1",
    }
    words = ("agent", "web-search-essay", TOPIC, "--style", "news", "--wording", "sources", "--sources", "3", "--json")
    done = pyagent(*words, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["style"] == "news"
    assert len(told["sources"]) == 3
    assert "## Accounts differ" in told["text"]
    refused = pyagent(*words, env=env | {"PYAGENT_WEB__PROVIDER": ""})
    assert refused.returncode != 0
    assert refused.stderr.startswith("error: no search provider is set")
    assert len(refused.stderr.strip().splitlines()) == 1


def test_client_of_a_server_has_an_essay(tmp_path: Path, url: str) -> None:
    """Over HTTP the model `agent:web-search-essay` answers with the essay, and the tool has it for models."""
    made = fleet(tmp_path, **{"web.url": url})
    agents = AgentBackend(lambda: made)
    app = create_app(Model(), agents=agents, api_keys=keys())
    with serve(app) as served:
        body = {"model": "agent:web-search-essay", "messages": [{"role": "user", "content": TOPIC}]}
        told = httpx.post(f"{served}/v1/chat/completions", json=body, timeout=60).json()
    text = told["choices"][0]["message"]["content"]
    assert text.startswith("# The Harbour Tower of Velm")
    assert "## Where sources disagree" in text
    assert isinstance(call(fleet(tmp_path, **{"web.url": url}), "web_search_essay", topic=TOPIC, sources=2), Essay)


def test_run_is_replayed_without_the_web(tmp_path: Path) -> None:
    """A run that is kept gives the same essay again when the site is gone: nothing is searched or read twice."""
    with serve(Web(GOOD).app()) as gone:
        essay(fleet(tmp_path, **{"web.url": gone}))

    async def check() -> ReplayReport:
        async with fleet(tmp_path, **{"web.url": gone}) as again:
            [row] = again.runs()
            return await again.check_replay(row.run)

    assert not asyncio.run(check()).difference


class Mine:
    """A plugin's search provider."""

    @hookimpl
    def pyagent_register_search_providers(self) -> dict[str, Any]:
        """One that always finds the guide."""

        class Found:
            async def search(self, query: str, limit: int) -> list[SearchHit]:
                return [SearchHit(f"http://guide.test/{query}/{limit}")]

        return {"mine": lambda _settings: Found()}


def test_plugin_brings_a_search_provider(tmp_path: Path) -> None:
    """`web.provider` names what a plugin brings by its hook."""
    settings = load_settings(overrides={"paths.data": str(tmp_path), "web.provider": "mine"}).settings
    host = make_host(settings)
    host.register(Mine(), "mine")
    made = Fleet(settings, backend=ScriptedBackend([]), host=host)
    assert call(made, "web_search", query="q", limit=2) == [SearchHit("http://guide.test/q/2")]
