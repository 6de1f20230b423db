"""A running server's profile over HTTP and on the command line: threads, functions, memory, garbage."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from support.waiting import wait_until
from typer.testing import CliRunner

from pyagent.cli.profile import app
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.observability.profile import Profile
from pyagent.infrastructure.server.api_keys import ApiKey
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

RUST = {f"pyagent-{number}" for number in range(64)}
KEYS = [ApiKey("admin", b"sk-0123456789abcdef", is_admin=True), ApiKey("other", b"sk-fedcba9876543210")]


def spin_in_a_test(until: threading.Event, kept: list[bytes]) -> None:
    while not until.is_set():
        sum(range(1000))
        kept.append(bytes(100_000))
        del kept[:-50]
        gc.collect(0)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A thread that computes, allocates and collects garbage."""
    until = threading.Event()
    thread = threading.Thread(target=spin_in_a_test, args=(until, []), name="busy-thread")
    thread.start()
    try:
        yield
    finally:
        until.set()
        thread.join()


@pytest.fixture
def url() -> Iterator[str]:
    with serve(create_app(ScriptedBackend([]))) as served:
        yield served


def taken(url: str, **body: object) -> Profile:
    answer = httpx.post(f"{url}/pyagent/profile", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Profile)


def taken_until(url: str, thread: str) -> Profile:
    """A profile in which a thread had processor time, which on a busy machine it may not have in the first."""
    found: list[Profile] = []

    def is_there() -> bool:
        found.append(taken(url, seconds=0.3))
        is_seen = any(one.name.startswith(thread) for one in found[-1].threads)
        return is_seen and bool(found[-1].functions) and found[-1].collections.count > 0

    wait_until(is_there)
    return found[-1]


def test_a_profile_names_the_thread_and_the_function_that_compute(url: str) -> None:
    """Processor time by thread, samples by function, collections with their pauses; waiting threads are in none."""
    with busy():
        profile = taken_until(url, "busy-thread")
    (spot,) = [one for one in profile.functions if one.function.startswith("spin_in_a_test (integration/test_profile")]
    assert 0 < spot.own <= spot.total <= profile.num_samples
    assert not any("threading.py" in one.function for one in profile.functions)
    found = profile.collections
    assert found.count > 0
    assert 0 < found.longest_pause_seconds <= found.pause_seconds
    assert found.top_types["builtins.function"] > 10  # what a loaded model froze is not looked at
    assert profile.resident_bytes > 10 << 20
    assert profile.allocations == []


def test_allocations_are_traced_where_asked_for(url: str) -> None:
    """The line that holds most of what was allocated meanwhile is the first; nothing is traced afterwards."""
    with busy():
        profile = taken(url, seconds=0.3, allocations=True)
    assert max(one.num_bytes for one in profile.allocations if "test_profile.py" in one.line) >= 100_000
    assert taken(url, seconds=0.1).allocations == []


def test_threads_of_the_rust_core_are_in_the_profile(tiny_model_path: Path) -> None:
    """What computes without a Python frame is told by its processor time."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "the user"}], "max_tokens": 400}
    until = threading.Event()

    def ask(url: str) -> None:
        while not until.is_set():
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

    with serve(create_app(NativeBackend.of("tiny", lambda: tiny_model_path))) as url:
        asking = threading.Thread(target=ask, args=(url,))
        asking.start()
        try:
            wait_until(lambda: any(one.name in RUST for one in taken(url, seconds=0.3).threads))
        finally:
            until.set()
            asking.join()


def test_profiles_are_for_administrators_one_at_a_time_and_bounded(url: str) -> None:
    """Another key is refused, so are a second profile at once and one that takes long."""
    assert "seconds is from 0.1 to 60" in httpx.post(f"{url}/pyagent/profile", json={"seconds": 61}).text
    until = threading.Event()
    answers: list[httpx.Response] = []

    def ask() -> None:
        while not until.is_set():
            answers.append(httpx.post(f"{url}/pyagent/profile", json={"seconds": 0.2}, timeout=60))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        wait_until(lambda: {200, 429} <= {answer.status_code for answer in answers})
    finally:
        until.set()
        for thread in asking:
            thread.join()
    assert "a profile is being taken" in next(answer.text for answer in answers if answer.status_code == 429)
    with serve(create_app(ScriptedBackend([]), api_keys=KEYS)) as private:
        headers = {"authorization": "Bearer sk-fedcba9876543210"}
        assert httpx.post(f"{private}/pyagent/profile", json={}, headers=headers).status_code == 403


def test_the_command_shows_a_profile_and_writes_it_into_a_file(url: str, tmp_path: Path) -> None:
    """Threads, functions, memory and garbage in words; the file has all of it."""
    file = tmp_path / "profile.json"
    with busy():
        arguments = ["--seconds", "0.3", "--allocations", "--url", url, "--output", str(file)]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for told in ("processor time by thread", "spin_in_a_test", "memory: ", "garbage: ", "test_profile.py:"):
        assert told in result.output
    assert msgspec.json.decode(file.read_bytes(), type=Profile).functions
