"""Hooks run at start-up and at the borders of a request: how many tokens an answer has does not change how often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.core.plugins import PluginHost


def test_hooks_are_never_called_per_token(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer asks the host as often as a short one, and calls no plugin's hook."""
    asked: list[str] = []
    called: list[str] = []
    collect_noun, call_hook = PluginHost._collect, PluginHost._call

    def count_asked(host: PluginHost, noun: str) -> dict[str, object]:
        asked.append(noun)
        return collect_noun(host, noun)

    def count_called(host: PluginHost, plugin: Any, noun: str, impl: Any) -> object:
        called.append(noun)
        return call_hook(host, plugin, noun, impl)

    monkeypatch.setattr(PluginHost, "_collect", count_asked)
    monkeypatch.setattr(PluginHost, "_call", count_called)
    settings = load_settings(overrides={"chain": [f"native:{tiny_model_path}"], "engine.threads": 1}).settings

    async def main() -> list[tuple[int, int, int]]:
        chain = make_chain(settings, make_host(settings))
        assert called, "making the chain asks plugins"
        found: list[tuple[int, int, int]] = []
        try:
            for num_tokens in (1, 2, 200):
                asked.clear()
                called.clear()
                sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
                answer = await collect(chain.chat(ChatRequest(prompt="count", sampling=sampling)))
                assert answer.last.usage is not None
                found.append((answer.last.usage.completion_tokens, len(asked), len(called)))
        finally:
            await chain.close()
        return found

    _, short, long = asyncio.run(main())
    assert (short[0], long[0]) == (2, 200)
    assert short[1:] == long[1:] == (0, 0)
