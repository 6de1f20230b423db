"""GET /metrics of a real server: what is counted, under which labels, and at what cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.fleets import Custom, echo

from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import CacheMiss, CacheReport, ChatDelta, Timings, Usage
from pyagent.core.response_cache.cache import ResponseCache
from pyagent.core.response_cache.store import ResponseStore
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.observability.metrics import AnswerWatch, Histogram, ServerStats, render
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import Reply, ScriptedBackend, serve

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
HI = [{"role": "user", "content": "hi"}]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextmanager
def server(script: object) -> Iterator[httpx.Client]:
    with serve(create_app(ScriptedBackend(script))) as url, httpx.Client(base_url=url, verify=False) as http:  # type: ignore[arg-type]
        yield http


def scraped(text: str) -> Samples:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    wanted = set(labels.items())
    return sum(number for (found, labelled), number in samples.items() if found == name and wanted <= set(labelled))


def test_answers_are_counted_by_path_model_and_status() -> None:
    """Whole and streamed answers, refusals and unknown paths are each counted where they belong."""
    with server(lambda request: "one two three") as http:
        assert http.post("/v1/chat/completions", json={"messages": HI}).status_code == 200
        assert http.post("/v1/chat/completions", json={"messages": HI, "stream": True}).status_code == 200
        assert http.post("/v1/chat/completions", json={"messages": []}).status_code == 400
        for number in range(5):
            assert http.get(f"/wp-admin/{number}").status_code == 404
        samples = scraped(http.get("/metrics").text)
    path = "/v1/chat/completions"
    assert value(samples, "pyagent_http_requests_total", path=path, model="scripted", status="200") == 2
    assert value(samples, "pyagent_http_requests_total", path=path, status="400") == 1
    assert value(samples, "pyagent_http_requests_total", path="other", status="404") == 5
    assert value(samples, "pyagent_http_request_seconds_count", path=path) == 3
    assert value(samples, "pyagent_first_token_seconds_count", model="scripted") == 2
    assert value(samples, "pyagent_inter_token_seconds_count", model="scripted") == 4
    assert value(samples, "pyagent_generation_tokens_total", model="scripted") == 6
    assert value(samples, "pyagent_http_requests_running") == 1  # the scrape itself


def test_answer_that_breaks_off_is_counted_as_such() -> None:
    """A stream whose status was fine and whose end was not is no success."""
    broken = Reply("one two three", error=BackendError("gone", backend="x"), fail_at=2)
    with server(lambda request: broken) as http:
        assert "gone" in http.post("/v1/chat/completions", json={"messages": HI, "stream": True}).text
        samples = scraped(http.get("/metrics").text)
    assert value(samples, "pyagent_http_requests_total", status="broken_off") == 1
    assert value(samples, "pyagent_http_requests_total", status="200") == 0


def test_usage_becomes_figures() -> None:
    """Cached tokens, waiting and cache misses are taken from an answer's usage."""
    stats = ServerStats()
    miss = CacheMiss(reason="changed", position=3)
    usage = Usage(10, 2, 12, timings=Timings(queue_seconds=0.3), cache=CacheReport(miss=miss))
    AnswerWatch(stats).saw(ChatDelta(content="x", model="m", usage=usage, finish_reason="stop"))
    samples = scraped(render(stats.collect()).decode())
    assert value(samples, "pyagent_prompt_tokens_total", model="m") == 10
    assert value(samples, "pyagent_cache_misses_total", model="m", reason="changed") == 1
    assert value(samples, "pyagent_queue_seconds_sum", model="m") == pytest.approx(0.3)


def test_models_beyond_a_hundred_are_counted_together() -> None:
    """Whatever names backends give, the number of labels stays bounded."""
    stats = ServerStats()
    for number in range(300):
        AnswerWatch(stats).saw(ChatDelta(content="x", model=f"m{number}"))
    assert len(stats.first_token_seconds) == 101


@given(st.lists(st.floats(0, 1000)))
def test_histogram_counts_each_value_once(values: list[float]) -> None:
    """Buckets are cumulative: each holds the values at most its bound, the last all of them."""
    histogram = Histogram((0.1, 1.0, 10.0))
    for number in values:
        histogram.observe(number)
    expected = [float(sum(number <= bound for number in values)) for bound in (0.1, 1.0, 10.0)]
    assert [count for _, count in histogram.buckets()] == [*expected, len(values)]
    assert histogram.total == pytest.approx(sum(values))


def test_scrape_is_quick() -> None:
    """With thirty models, all of whose stats are there, a scrape takes milliseconds."""
    stats = ServerStats()
    for number in range(30):
        for _ in range(3):
            AnswerWatch(stats).saw(ChatDelta(content="x", model=f"m{number}", usage=Usage(1, 1, 2)))
    render(stats.collect())  # imports
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        render(stats.collect())
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5, "some milliseconds on an idle machine"


def test_every_figure_is_documented(tiny_model_path: Path, tmp_path: Path) -> None:
    """The reference page has each family with its labels, and none that does not exist."""
    backend = NativeBackend.of(
        "tiny", lambda: tiny_model_path, EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 20))
    )
    chain = Chain([backend], response_cache=ResponseCache(ResponseStore(1000, 60)))
    journal = SqliteJournal(tmp_path)
    agents = AgentBackend(lambda: Fleet(ScriptedBackend([]), [Custom("echo", echo)], journal=journal))
    agents.fleet()
    with (
        closing(journal),
        serve(create_app(chain, agents=agents)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        body = {"messages": HI, "max_tokens": 3, "ignore_eos": True}
        timings = http.post("/v1/chat/completions", json=body).json()["usage"]["timings"]
        state = http.get("/pyagent/engine").json()
        families = list(text_string_to_metric_families(http.get("/metrics").text))
    samples = [sample for family in families for sample in family.samples]
    assert next(s.value for s in samples if s.name == "pyagent_engine_requests_finished_total") == 1
    assert next(s.value for s in samples if s.name == "pyagent_engine_generation_tokens_total") == 3
    [engine] = [stats for link in state.values() for stats in link["stats"].values()]
    quantiles = [s for s in samples if s.name == "pyagent_engine_first_token_seconds"]
    assert [s.labels["quantile"] for s in quantiles] == ["0.5", "0.95", "0.99"]
    assert all(s.value > 0 for s in quantiles)
    assert 0 < timings["forward_seconds"] < timings["total_seconds"]
    assert 0 < timings["scheduler_seconds"] < timings["total_seconds"]
    assert engine["step_trend"] > 0
    assert engine["num_slow_steps"] == 0
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    page = DOCS.read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `pyagent_")]
    told = {name.strip(" `") for cell in cells for name in cell.split(",")}
    assert {name for name in told if not name.startswith(("pyagent_cluster_", "pyagent_peer_"))} == names
