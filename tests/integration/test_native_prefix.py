"""The embedded engine goes on with an answer that was begun elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.chains import Played, says
from support.native import chat, run, running

from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError, RequestError
from pyagent.core.messages import ChatRequest, ResponseFormat


def begun(request: ChatRequest, prefix: str) -> ChatRequest:
    return msgspec.structs.replace(request, answer_prefix=prefix)


def test_greedy_answer_goes_on_as_it_would_have(tiny_model_path: Path) -> None:
    """From where its text has the tokens it was drawn with, an answer ends as if it had never been broken off."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            whole = await collect(backend.chat(chat("hello", max_tokens=24, temperature=0, ignore_eos=True)))
            request = chat("hello", max_tokens=24, temperature=0, ignore_eos=True)
            num_alike = 0
            cuts = range(1, len(whole.text), 5)
            for cut in cuts:
                rest = await collect(backend.chat(begun(request, whole.text[:cut])))
                num_alike += whole.text[:cut] + rest.text == whole.text
                assert rest.last.finish_reason == "length"
            assert num_alike >= len(cuts) // 4

    run(work())


def test_answer_with_a_form_goes_on_within_it(tiny_model_path: Path) -> None:
    """The grammar takes the beginning in, and the rest completes it; a beginning it refuses is told so."""
    form = ResponseFormat("choice", choice=["alpha beta", "alpha gamma"])
    request = msgspec.structs.replace(chat("pick", max_tokens=40, temperature=0), response_format=form)

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            rest = await collect(backend.chat(begun(request, "alpha ")))
            assert rest.text in {"beta", "gamma"}
            assert rest.usage.completion_tokens > len("beta") // 4
            with pytest.raises(RequestError, match="answer_prefix does not match response_format"):
                await collect(backend.chat(begun(request, "omega")))
            with pytest.raises(RequestError, match="several are asked for"):
                await collect(backend.chat(msgspec.structs.replace(begun(chat("x"), "y"), n=2)))

    run(work())


def test_prefix_that_begins_a_stop_text_is_not_told_again(tiny_model_path: Path) -> None:
    """What is held back because a stop text might begin there was told already."""
    plain = chat("hello", max_tokens=8, temperature=0, ignore_eos=True)
    stopping = chat("hello", max_tokens=8, temperature=0, ignore_eos=True, stop=("ab never comes",))

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            texts = [(await collect(backend.chat(begun(each, "x ab")))).text for each in (plain, stopping)]
            assert texts[0] == texts[1]

    run(work())


def test_chain_goes_on_with_the_native_link(tiny_model_path: Path) -> None:
    """A remote link breaks off; the embedded engine takes over from its text; tokens told count as drawn."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            gone = BackendError("connection closed", backend="link:a")
            chain = Chain([Played("a", says("Once upon", gone)), backend])
            request = chat("tell", max_tokens=12, temperature=0, ignore_eos=True)
            answer = await collect(chain.chat(request))
            alone = await collect(backend.chat(begun(request, "Once upon")))
            assert answer.text == "Once upon" + alone.text
            assert answer.last.usage is not None
            assert answer.last.usage.completion_tokens == 12

    asyncio.run(work())
