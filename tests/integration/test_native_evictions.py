"""An eviction policy from the settings to the engine's memory."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.eviction import EvictionPolicyFactory
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.plugins import PluginHost
from pyagent.core.prompt_cache import ViewCache
from pyagent.core.runners.factory import RunnerOptions
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.runners.cpu import CpuRunner


class Watching:
    """Orders nothing, since nothing is evicted here; fails at its third block when told to."""

    def __init__(self, *, is_faulty: bool = False) -> None:
        self.inserted: list[int] = []
        self.is_faulty = is_faulty

    def insert(self, block: int, key: int, priority: int) -> None:
        self.inserted.append(block)
        if self.is_faulty and len(self.inserted) == 3:
            raise RuntimeError("three is a crowd")

    def hit(self, block: int) -> None: ...
    def release(self, block: int) -> None: ...
    def hold(self, block: int) -> None: ...
    def evict(self) -> int | None: ...
    def forget(self, block: int) -> None: ...


class Plugin:
    """Brings the policy `watching`."""

    def __init__(self, policy: Watching) -> None:
        self.policy = policy

    @hookimpl
    def pyagent_register_eviction_policies(self) -> Mapping[str, EvictionPolicyFactory]:
        return {"watching": lambda num_pages: self.policy}


def settings_with(model: Path, eviction: str) -> Settings:
    return load_settings(overrides={"chain": [f"native:{model}"], "engine.eviction": eviction}).settings


def answer(settings: Settings, host: PluginHost) -> str:
    async def main() -> str:
        chain = make_chain(settings, host)
        sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        try:
            request = ChatRequest(messages=[Message("user", "count " * 20)], sampling=sampling)
            return (await collect(chain.chat(request))).text
        finally:
            await chain.close()

    return asyncio.run(main())


@pytest.mark.parametrize("is_faulty", [False, True])
def test_plugin_policy_is_told_of_blocks(
    tiny_model_path: Path, is_faulty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy that a plugin brings sees the engine's blocks; one that fails changes no answer and is logged."""
    plain = settings_with(tiny_model_path, "lru")
    expected = answer(plain, make_host(plain))
    settings = settings_with(tiny_model_path, "watching")
    policy = Watching(is_faulty=is_faulty)
    host = make_host(settings)
    host.register(Plugin(policy), "mine")
    with caplog.at_level(logging.ERROR):
        assert answer(settings, host) == expected
    assert len(policy.inserted) == 3 if is_faulty else len(policy.inserted) > 3
    assert ("three is a crowd" in caplog.text) == is_faulty


def test_unknown_policy_is_refused_before_anything_runs(tiny_model_path: Path) -> None:
    """A policy that no plugin brings is named when the chain is made."""
    settings = settings_with(tiny_model_path, "lur")
    with pytest.raises(ConfigError, match=r"engine\.eviction.*'lur'"):
        make_chain(settings, make_host(settings))


def test_engine_answers_while_a_policy_is_asked(tiny_model_path: Path) -> None:
    """A step that waits for a policy in Python never waits for a thread that asks the model something."""
    runner = CpuRunner(tiny_model_path, RunnerOptions(threads=1, kv_bytes=1 << 20, eviction=lambda _: Watching()))
    is_done = threading.Event()

    def ask() -> None:
        while not is_done.is_set():
            runner.model.info()
            runner.pool.stats()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    for turn in range(300):
        runner.pool.add(turn, [turn] * 16)
        runner.pool.reserve(turn, 16)
        runner.model.execute(runner.pool, [turn], [16], [turn] * 16)
        runner.pool.release(turn)
    is_done.set()
    asking.join(10)
    assert not asking.is_alive()


def test_prefix_keys_are_equal_between_engines_when_asked_for(tiny_model_path: Path) -> None:
    """With `sha256` two engines give a prompt one key; by default each has keys of its own."""

    async def keys(prefix_hash: str) -> set[str]:
        overrides = {"chain": [f"native:{tiny_model_path}"], "engine.prefix_hash": prefix_hash}
        settings = load_settings(overrides=overrides).settings
        chain = make_chain(settings, make_host(settings))
        try:
            request = ChatRequest(prompt="count " * 20, sampling=SamplingParams(temperature=0, max_tokens=1))
            await collect(chain.chat(request))
            answer = await chain.query_cache(ViewCache(9))
            return {prompt.key for model in answer.models for prompt in model.prompts}
        finally:
            await chain.close()

    for prefix_hash, are_equal in (("sha256", True), ("xxh3", True), ("siphash", False)):
        first, second = (asyncio.run(keys(prefix_hash)) for _ in range(2))
        assert first
        assert (first == second) == are_equal
