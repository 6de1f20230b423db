"""Request classes from the settings to the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom, events_of

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import ModelCalled
from pyagent.core.fleet.steps import Step
from pyagent.core.messages import ChatRequest, Message, Origin, SamplingParams
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.fleet import Fleet


def settings_with(model: Path, queues: dict[str, object]) -> Settings:
    return load_settings(overrides={"chain": [f"native:{model}"], "engine.queues": queues}).settings


def request_of(request_class: str) -> ChatRequest:
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    origin = Origin(client="me", agent="writer", run="r-1")
    return ChatRequest(
        messages=[Message("user", "hi")], sampling=sampling, request_class=request_class, origin=origin, priority=3
    )


def test_requests_of_each_class_are_answered_and_an_unknown_class_is_refused(tiny_model_path: Path) -> None:
    """Classes of the settings, with plugins' policies and options, take requests; a class not there is named."""
    queues = {"default": {"policy": "fair", "options": {"per": "agent"}}, "urgent": {"policy": "mlfq", "share": 4}}
    settings = settings_with(tiny_model_path, queues)

    async def main() -> None:
        chain = make_chain(settings, make_host(settings))
        try:
            for name in ("", "default", "urgent"):
                answer = await collect(chain.chat(request_of(name)))
                assert answer.usage.completion_tokens == 3
            with pytest.raises(RequestError, match="default, urgent"):
                await collect(chain.chat(request_of("batch")))
        finally:
            await chain.close()

    asyncio.run(main())


def test_class_of_a_step_reaches_the_engine(tiny_model_path: Path) -> None:
    """What a step's agent asks waits in the queue of the step's class: one that the engine has not fails the step."""
    settings = settings_with(tiny_model_path, {"urgent": {"policy": "priority"}})

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("hi", sampling=SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))

    async def main() -> None:
        async with Fleet(settings, agents=[Custom("ask", ask)]) as fleet:
            steps = [Step(name="a", agent="ask", task=Task(text="x"), request_class="urgent", priority=-2)]
            seen, error = await events_of(fleet, steps)
            assert error is None
            assert any(isinstance(event, ModelCalled) and event.error is None for event in seen)
            _, error = await events_of(fleet, [msgspec.structs.replace(steps[0], request_class="batch")])
            assert isinstance(error, RequestError)
            assert "the classes are urgent, default" in str(error)

    asyncio.run(main())


@pytest.mark.parametrize(
    "queue", [{"policy": "shortest"}, {"options": {"ageing_seconds": 1}}, {"share": 0}, {"polcy": "fcfs"}]
)
def test_wrong_queue_settings_are_refused_before_anything_runs(tiny_model_path: Path, queue: dict[str, object]) -> None:
    """A policy that is not there, an option it does not take, a share of nothing: named when the chain is made."""

    def start() -> None:
        settings = settings_with(tiny_model_path, {"default": queue})
        make_chain(settings, make_host(settings))

    with pytest.raises(ConfigError, match=r"engine\.queues|queue policy"):
        start()


def test_engine_needs_no_policy_plugin(tiny_model_path: Path) -> None:
    """With the plugin of the policies disabled, first come, first served is still there."""
    settings = settings_with(tiny_model_path, {})
    host = PluginHost.discover(msgspec.structs.replace(settings.plugins, disable=["queues"]))
    make_chain(settings, host)
