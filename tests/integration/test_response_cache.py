"""Kept answers as a user meets them: pyagent.toml, the tiny model, HTTP, /metrics, `pyagent cache answers`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server import keys
from typer.testing import CliRunner

from pyagent.assembly import make_chain, make_host
from pyagent.cli.cache import app as cache_command
from pyagent.core.config import load_settings
from pyagent.core.errors import RequestError
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

KEYS = ("sk-0123456789abcdef", "sk-fedcba9876543210")
ADMIN = "sk-admin-0123456789"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
HI: Any = [{"role": "user", "content": "the user is at ease"}]
SETTINGS = """chain = ["native"]
[response_cache]
keep = "determined"
[engine]
models = ["{model}"]
memory = "1GB"
threads = 1
"""


@pytest.fixture(scope="module")
def url(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("settings") / "pyagent.toml"
    file.write_text(SETTINGS.format(model=tiny_model_path), encoding="utf-8")
    settings = load_settings(file).settings
    chain = make_chain(settings, make_host(settings))
    try:
        with serve(create_app(chain, api_keys=keys(*KEYS, admin=ADMIN))) as served:
            yield served
    finally:
        asyncio.run(chain.close())


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEYS[0]}"}, timeout=60) as client:
        client.post("/pyagent/response_cache/clear", json={}, headers=AS_ADMIN).raise_for_status()
        yield client


def stats(http: httpx.Client) -> dict[str, float]:
    return http.get("/pyagent/response_cache").raise_for_status().json()


def asked(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"messages": HI, "max_tokens": 8, "temperature": 0} | fields
    return http.post("/v1/chat/completions", json=body).raise_for_status().json()


def test_second_answer_of_the_engine_is_the_first_one(http: httpx.Client) -> None:
    """Greedy and seeded answers come again without computing, and say so; a drawn one is computed each time."""
    for fields in ({"temperature": 0}, {"temperature": 1, "seed": 7}, {"n": 2, "temperature": 0.5, "seed": 1}):
        first, second = asked(http, **fields), asked(http, **fields)
        assert [choice["message"] for choice in second["choices"]] == [c["message"] for c in first["choices"]]
        assert [choice["finish_reason"] for choice in second["choices"]] == ["length"] * len(first["choices"])
        assert "answer" not in first["usage"]
        assert "timings" in first["usage"]
        assert second["usage"]["answer"] == "cached"
        assert second["usage"]["completion_tokens"] == first["usage"]["completion_tokens"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["usage"]["prompt_tokens"]
        assert "timings" not in second["usage"]
    assert "answer" not in asked(http, temperature=1)["usage"]
    assert "answer" not in asked(http, temperature=1)["usage"]


def test_openai_client_reads_a_stream_from_what_was_whole(url: str, http: httpx.Client) -> None:
    """An answer made whole is streamed later, with logprobs and the same text, and the mark in its last chunk."""
    fields: Any = {"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    whole = asked(http, **fields)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0], max_retries=0)
    with client:
        chunks = list(
            client.chat.completions.create(
                model="default", messages=HI, stream=True, stream_options={"include_usage": True}, **fields
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_extra == {"answer": "cached"}


def test_other_apis_find_the_same_answer(http: httpx.Client) -> None:
    """What OpenAI's API made is given to Anthropic's, all of its prompt read from the cache."""
    first = asked(http)
    asked(http, model=first["model"])
    body = {"messages": HI, "max_tokens": 8, "temperature": 0, "model": first["model"]}
    before = stats(http)["num_misses"]
    answer = http.post("/v1/messages", json=body).raise_for_status().json()
    assert stats(http)["num_misses"] == before
    assert answer["usage"]["input_tokens"] == 0
    assert answer["usage"]["cache_read_input_tokens"] > 0


def test_other_key_gets_its_own_answer(http: httpx.Client) -> None:
    """What was made for one API key is not given to another."""
    asked(http)
    assert asked(http)["usage"]["answer"] == "cached"
    http.headers["authorization"] = f"Bearer {KEYS[1]}"
    assert "answer" not in asked(http)["usage"]
    assert asked(http)["usage"]["answer"] == "cached"


def test_a_key_forgets_and_counts_its_own(http: httpx.Client) -> None:
    """A client's clear leaves other keys' answers, which it is not told of; an administrator's takes all."""
    asked(http)
    theirs = {"authorization": f"Bearer {KEYS[1]}"}
    assert http.get("/pyagent/response_cache", headers=theirs).json()["num_entries"] == 0
    assert http.post("/pyagent/response_cache/clear", json={}, headers=theirs).json() == {"num_forgotten": 0}
    assert asked(http)["usage"]["answer"] == "cached"
    assert http.get("/pyagent/response_cache", headers=AS_ADMIN).json()["num_entries"] == 1
    assert http.post("/pyagent/response_cache/clear", json={}, headers=AS_ADMIN).json() == {"num_forgotten": 1}
    assert "answer" not in asked(http)["usage"]


def test_a_page_of_another_origin_clears_nothing(http: httpx.Client) -> None:
    """A simple request of a browser's page is refused, as every other POST is."""
    headers = {"origin": "http://evil.example", "content-type": "text/plain"}
    assert http.post("/pyagent/response_cache/clear", content=b"", headers=headers).status_code == 415
    assert http.post("/pyagent/engine/wake", content=b"", headers=AS_ADMIN | headers).status_code == 415


def test_a_kept_answer_does_not_hide_a_request_that_is_refused(http: httpx.Client) -> None:
    """A request class that is not there is refused before and after the same request's answer was kept."""
    for _ in range(2):
        body = {"messages": HI, "max_tokens": 8, "temperature": 0, "request_class": "nope"}
        assert http.post("/v1/chat/completions", json=body).status_code == 400
        asked(http)


def test_equal_requests_at_once_are_one_to_the_engine(http: httpx.Client) -> None:
    """Eight clients that ask the same at the same time get one text, computed once."""
    before = stats(http)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asked(http, max_tokens=40), range(8)))
    after = stats(http)
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    assert after["num_misses"] - before["num_misses"] == 1
    saved = after["num_hits"] + after["num_shared"] - before["num_hits"] - before["num_shared"]
    assert saved == 7


def test_figures_are_in_metrics_and_on_the_command_line(url: str, http: httpx.Client, tmp_path: Path) -> None:
    """Hits, ratio and bytes are scraped and shown; tokens given again are not counted as drawn; --clear forgets."""

    def scraped() -> dict[tuple[str, str], float]:
        text = http.get("/metrics", headers=AS_ADMIN).text
        families = text_string_to_metric_families(text)
        return {(s.name, next(iter(s.labels.values()), "")): s.value for f in families for s in f.samples}

    asked(http)
    before = scraped()
    asked(http)
    after = scraped()
    drawn = [name for name in after if name[0] == "pyagent_generation_tokens_total"]
    assert drawn
    assert all(after[name] == before[name] for name in drawn)
    hits = ("pyagent_response_cache_requests_total", "hit")
    assert after[hits] == before[hits] + 1
    assert 0 < after["pyagent_response_cache_hit_ratio", ""] < 1
    assert after["pyagent_response_cache_bytes", ""] > 700
    assert after["pyagent_response_cache_entries", "other"] == 1
    (tmp_path / "keys").write_text("\n".join(KEYS))
    (tmp_path / "pyagent.toml").write_text(f'[server]\napi_keys_file = "{tmp_path / "keys"}"\n')
    where = ["--url", url, "--config", str(tmp_path / "pyagent.toml")]
    shown = CliRunner().invoke(cache_command, ["answers", *where], catch_exceptions=False)
    assert "1 answers, 0 of them pinned" in shown.output
    shown = CliRunner().invoke(cache_command, ["answers", "--clear", "--json", *where], catch_exceptions=False)
    assert '"num_entries":0' in shown.output


def test_kept_answer_comes_over_http_in_milliseconds(http: httpx.Client) -> None:
    """The whole way over HTTP takes a few milliseconds on an idle machine, however long the answer took."""
    asked(http, max_tokens=64)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        assert asked(http, max_tokens=64)["usage"]["answer"] == "cached"
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.2


def test_server_that_keeps_none_says_how_to(tmp_path: Path) -> None:
    """Without the setting the command names it."""
    with serve(create_app(ScriptedBackend([]))) as url:
        (tmp_path / "pyagent.toml").write_text("")
        with pytest.raises(RequestError, match=r"\[response_cache\]"):
            CliRunner().invoke(
                cache_command,
                ["answers", "--url", url, "--config", str(tmp_path / "pyagent.toml")],
                catch_exceptions=False,
            )


def test_nothing_is_imported_unless_set() -> None:
    """A chain of the defaults imports nothing of the cache."""
    code = (
        "import sys; from pyagent.assembly import make_chain, make_host; from pyagent.core.settings import Settings; "
        "s = Settings(); make_chain(s, make_host(s)); sys.exit(any('core.answers' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
