"""The activations behind a run's answers: how much is journalled, how it is shown, and which settings are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fleets import Custom, ask, events_of

import pyagent
from pyagent.cli.run_activations import activation_lines
from pyagent.core.activations import LensToken, NeuronActivation, TokenActivations
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.fleet import model_call
from pyagent.core.fleet.events import Event, ModelCalled
from pyagent.core.fleet.limits import FleetLimits
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatDelta, ChatRequest, Usage
from pyagent.testing import ScriptedBackend

NEURON = NeuronActivation(24, 1005, -27.51, 154.5, [" capital", "\x1b[31m"])
PARIS = TokenActivations(
    " Paris", [NEURON], [[LensToken(" the", -0.1)], [LensToken(" the", -0.7)], [LensToken(" Paris", -0.02)]]
)


class Telling(ScriptedBackend):
    """Tells the same of each token."""

    def __init__(self, answer: str) -> None:
        super().__init__([answer])

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        async for delta in super().chat(request):
            yield replace(delta, activations=[PARIS] if delta.content else [])


def called(*activations: TokenActivations, **more: object) -> ModelCalled:
    fields: dict[str, object] = {
        "run": "r-1",
        "step": "ask",
        "agent": "ask",
        "backend": "native:tiny",
        "messages": [],
        "answer": "",
    }
    return ModelCalled(**fields, activations=[*activations], **more)  # type: ignore[arg-type]


def test_a_token_is_shown_with_neurons_and_layers() -> None:
    """A neuron has its place, activation, length and tokens; layers that say the same are one; no control character."""
    (head, *lines) = activation_lines([called(PARIS, usage=Usage(completion_tokens=9))], 100)
    assert head.endswith("ask · native:tiny")
    assert lines == [
        '" Paris"         neurons  24.1005 -27.5 (154) " capital" "\\x1b[31m"',
        '                 layers   0-1 " the" 50%  2 " Paris" 98%',
        "1 of 9 tokens have their activations kept",
        "",
    ]
    assert [*activation_lines([called()], 100)] == []


def test_long_lines_are_broken_between_neurons() -> None:
    """No line of a token is wider than the terminal, and no neuron is broken."""
    lines = [*activation_lines([called(TokenActivations("a", [NEURON] * 9, PARIS.layers * 20))], 80)][1:-1]
    assert max(map(len, lines)) <= 80
    assert sum(line.count("24.1005 -27.5 (154)") for line in lines) == 9
    assert sum(line.count('" Paris" 98%') for line in lines) == 20


def test_so_much_of_an_answer_is_journalled_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long answer the first tokens keep their activations: those that are four entries each, of nine at most."""
    monkeypatch.setattr(model_call, "MOST_ACTIVATIONS", 9)

    async def main() -> tuple[list[Event], list[ChatRequest]]:
        backend, limits = Telling("a b c"), FleetLimits(top_activations=1, logit_lens=1)
        seen, error = await events_of(Fleet(backend, [Custom("ask", ask)], limits=limits), "a task")
        assert error is None
        return seen, backend.requests

    events, (request,) = asyncio.run(main())
    (call,) = [event for event in events if isinstance(event, ModelCalled)]
    assert call.activations == [PARIS] * 2
    assert (request.sampling.top_activations, request.sampling.logit_lens) == (1, 1)


def test_a_wrong_setting_is_refused_when_the_fleet_is_made(tmp_path: Path) -> None:
    """A number that no request may ask for is refused by the setting's name, before a run fails of it."""
    overrides = {"fleet.top_activations": 33, "paths.data": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"fleet\.top_activations must be between 1 and 32, got 33") as refused:
        pyagent.Fleet(load_settings(overrides=overrides).settings)
    assert refused.value.key == "fleet.top_activations"
