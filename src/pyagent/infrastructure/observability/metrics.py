"""Metrics of the HTTP server, for Prometheus at GET /metrics.

Count in plain objects that one event loop owns; `prometheus-client` is imported at the first scrape. No global state:
each server has its own stats. Labels take few values: paths are those of the routes, and models beyond the first
hundred are counted as `other`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyagent.core.histogram import Histogram
from pyagent.core.messages import ChatDelta, Usage

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_MAX_MODELS = 100


_Labels = tuple[str, ...]


def _histograms(bounds: tuple[float, ...] = _SECONDS) -> defaultdict[_Labels, Histogram]:
    return defaultdict(lambda: Histogram(bounds))


class ServerStats:
    """What a server has answered since it started. Keys of counters are the labels' values."""

    def __init__(self) -> None:
        self.num_running = 0
        self.requests = Counter[_Labels]()
        self.prompt_tokens = Counter[_Labels]()
        self.cached_tokens = Counter[_Labels]()
        self.generation_tokens = Counter[_Labels]()
        self.cache_misses = Counter[_Labels]()
        self.key_requests = Counter[_Labels]()
        self.key_tokens = Counter[_Labels]()
        self.request_seconds = _histograms()
        self.first_token_seconds = _histograms()
        self.queue_seconds = _histograms()
        self.inter_token_seconds = _histograms(_TOKEN_SECONDS)
        self._models = set[str]()

    def answered(self, path: str, model: str, status: str, seconds: float) -> None:
        """Count an answered request by its HTTP status, or by what broke its answer off."""
        self.requests[path, model, status] += 1
        self.request_seconds[path, model].observe(seconds)

    def used(self, key: str, status: str, num_tokens: int) -> None:
        """Count a request of an API key, with its prompt and completion tokens."""
        if key:
            self.key_requests[key, status] += 1
            self.key_tokens[key,] += num_tokens

    def label(self, model: str) -> str:
        """Return a model's name as a label: itself, or `other` beyond the first hundred."""
        if model not in self._models and len(self._models) < _MAX_MODELS:
            self._models.add(model)
        return model if model in self._models else "other"

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of all clients together."""
        from prometheus_client.core import GaugeMetricFamily

        running = GaugeMetricFamily("pyagent_http_requests_running", "HTTP requests in flight.")
        running.add_metric((), self.num_running)
        yield running
        yield from self._counters()
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        of_requests = ("path", "model", "status")
        cached = "Prompt tokens of the answered requests that the prefix cache held."
        missed = "Prompts that missed the prefix cache, by reason of the first difference."
        for name, text, labels, counter in (
            ("http_requests", "HTTP requests answered, by path, model and status.", of_requests, self.requests),
            ("prompt_tokens", "Prompt tokens of the answered requests.", ("model",), self.prompt_tokens),
            ("cached_prompt_tokens", cached, ("model",), self.cached_tokens),
            ("generation_tokens", "Output tokens of the answered requests.", ("model",), self.generation_tokens),
            ("cache_misses", missed, ("model", "reason"), self.cache_misses),
        ):
            family = CounterMetricFamily(f"pyagent_{name}", text, labels=labels)
            for values, count in counter.items():
                family.add_metric(values, count)
            yield family

    def _histograms(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        request = "Seconds from a request's arrival to the end of its answer (end-to-end latency)."
        first = "Seconds from a request's arrival to its first token (time to first token, TTFT)."
        between = "Seconds between two streamed pieces of an answer (inter-token latency)."
        for name, text, labels, labelled in (
            ("http_request", request, ("path", "model"), self.request_seconds),
            ("first_token", first, ("model",), self.first_token_seconds),
            ("queue", "Seconds that a request waited in the engine's queue.", ("model",), self.queue_seconds),
            ("inter_token", between, ("model",), self.inter_token_seconds),
        ):
            family = HistogramMetricFamily(f"pyagent_{name}_seconds", text, labels=labels)
            for values, histogram in labelled.items():
                family.add_metric(values, histogram.buckets(), histogram.total)
            yield family

    def collect_keys(self, key: str | None = None) -> Iterator[Metric]:
        """Return the metrics of each API key, or of the one with this name."""
        from prometheus_client.core import CounterMetricFamily

        for name, text, labels, counter in (
            (
                "key_requests",
                "Requests answered, by the API key's name and status.",
                ("key", "status"),
                self.key_requests,
            ),
            ("key_tokens", "Prompt and completion tokens, by the API key's name.", ("key",), self.key_tokens),
        ):
            family = CounterMetricFamily(f"pyagent_{name}", text, labels=labels)
            for values, count in counter.items():
                if key in {None, values[0]}:
                    family.add_metric(values, count)
            yield family


@dataclass(slots=True)
class AnswerWatch:
    """Count one answer, delta by delta."""

    stats: ServerStats
    model: str = ""
    started: float = field(default_factory=time.perf_counter)
    first_token_seconds: float | None = None
    _last_token: float | None = None

    def saw(self, delta: ChatDelta) -> None:
        """Count a delta of the answer."""
        stats, now = self.stats, time.perf_counter()
        self.model = self.model or stats.label(delta.model or delta.backend)
        if delta.content or delta.reasoning or delta.tool_calls:
            if self._last_token is None:
                self.first_token_seconds = round(now - self.started, 4)
                stats.first_token_seconds[self.model,].observe(now - self.started)
            else:
                stats.inter_token_seconds[self.model,].observe(now - self._last_token)
            self._last_token = now
        if delta.usage is not None:
            self._count(delta.usage)

    def _count(self, usage: Usage) -> None:
        stats, labels = self.stats, (self.model,)
        stats.prompt_tokens[labels] += usage.prompt_tokens
        stats.cached_tokens[labels] += usage.prompt_tokens_details.cached_tokens
        if usage.answer == "computed":
            stats.generation_tokens[labels] += usage.completion_tokens
        if usage.timings is not None:
            stats.queue_seconds[labels].observe(usage.timings.queue_seconds)
        if usage.cache is not None and usage.cache.miss is not None:
            stats.cache_misses[self.model, usage.cache.miss.reason] += 1


def render(collected: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus's text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collected(list(collected)))
    return generate_latest(registry)


@dataclass(slots=True, eq=False)
class _Collected:
    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families
