"""What a link's model cannot do: the chain passes it by, and only a chain without one that can says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from support.server import serving

from pyagent.assembly import make_chain, make_host
from pyagent.core.config import load_settings
from pyagent.core.errors import UnsupportedError
from pyagent.infrastructure.backends.openai_errors import map_error
from pyagent.testing import openai_server

PIXEL: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SEEN: Any = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, PIXEL]}]}
HI: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def ask(chain: Sequence[str], *bodies: Any) -> tuple[list[httpx.Response], Any]:
    """What a server over an explicit chain, as `--chain` makes it, answers in turn, and how its links stand then."""
    settings = load_settings(overrides={"chain": list(chain), "engine.threads": 1}).settings
    backend = make_chain(settings, make_host(settings), chain)
    async with serving(backend) as url, httpx.AsyncClient(base_url=url, timeout=30, verify=False) as http:
        answers = [await http.post("/v1/chat/completions", json=body) for body in bodies]
        states = {state["backend"]: state for state in (await http.get("/pyagent/chain")).json()}
        await backend.close()
        return answers, states


def test_image_goes_past_the_embedded_engine(tiny_model_path: Path) -> None:
    """`--chain native:FILE,openai:URL`: images are the second link's, text stays the first one's."""
    native = "native:tiny"
    with openai_server(answer="a cat") as server:
        answers, states = asyncio.run(ask([f"native:{tiny_model_path}", f"openai:{server.url}"], *[SEEN] * 5, HI))
    for answer in (answer.json() for answer in answers[:5]):
        assert answer["choices"][0]["message"]["content"] == "a cat"
        assert answer["attempts"] == [
            {"backend": native, "reason": f"{native} cannot do images", "kind": "unsupported"}
        ]
    assert answers[5].json()["backend"] == native
    assert (states[native]["breaker"], states[native]["failures"]) == ("closed", {"unsupported": 5})
    (message,) = cast("Any", server.requests[-1]["messages"])
    assert message["content"][1]["image_url"]["url"] == PIXEL["image_url"]["url"]


def test_chain_without_eyes_says_so(tiny_model_path: Path) -> None:
    """Where no link can read images, the request is refused by name, as one that cannot be served: a 400."""
    native = f"native:{tiny_model_path}"
    (alone,), _ = asyncio.run(ask([native], SEEN))
    with openai_server(reads_images=False) as server:
        (both,), _ = asyncio.run(ask([native, f"openai:{server.url}"], SEEN))
    for answer in (alone, both):
        assert answer.status_code == 400
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
            "messages",
            "unsupported_parameter",
        )
    assert "cannot do images" in both.json()["error"]["message"]
    assert "does not support image input" in both.json()["error"]["message"]


FUNCTION: Any = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"tools": [FUNCTION], "tool_choice": "required"}, "tool_use_failed"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "pay"}}}, "tool_use_failed"),
        ({"response_format": nested(120)}, "invalid_request"),
        ({"response_format": {"type": "choice", "choice": ["x" * 1000 + str(number) for number in range(1100)]}}, ""),
    ],
)
def test_requests_no_model_can_meet_leave_others_where_they_are(
    tiny_model_path: Path, asked: dict[str, Any], code: str
) -> None:
    """However often one client asks what the model cannot do, it is that request's fault: the link stays, and nobody
    else's text goes to the next one.
    """
    native, path = "native:tiny", f"native:{tiny_model_path}"
    with openai_server(answer="no call") as server:
        chain = [path, f"openai:{server.url}"]
        mine = HI | {"messages": [{"role": "user", "content": "MINE"}]}
        answers, states = asyncio.run(ask(chain, *[HI | asked] * 5, mine))
    assert states[native]["breaker"] == "closed"
    assert answers[5].json()["backend"] == native
    assert "MINE" not in str(server.requests)
    for answer in answers[:5]:
        assert answer.status_code in {200, 400}, "never a 5xx, upon which clients try again"
        if answer.status_code == 400 and code:
            assert answer.json()["error"]["code"] == code
        assert "<state>" not in answer.text


def test_effort_goes_past_models_that_do_not_reason(tiny_model_path: Path) -> None:
    """`reasoning_effort` is served by the first link that knows it; with none it is refused by name."""
    path, asked = f"native:{tiny_model_path}", HI | {"reasoning_effort": "low"}
    with openai_server(answer="so") as server:
        (answer,), _ = asyncio.run(ask([path, f"openai:{server.url}"], asked))
        assert server.requests[-1]["reasoning_effort"] == "low"
    assert answer.json()["choices"][0]["message"]["content"] == "so"
    (attempt,) = answer.json()["attempts"]
    assert attempt["reason"].startswith("native:tiny cannot do reasoning_effort: ")
    (alone,), _ = asyncio.run(ask([path], asked))
    assert alone.status_code == 400
    assert alone.json()["error"]["param"] == "reasoning_effort"
    (wish,), _ = asyncio.run(ask([path], HI | {"reasoning_effort": "none"}))
    assert wish.status_code == 200


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Unsupported parameter", "param": "reasoning_effort", "code": "unsupported_parameter"},
        {"message": "Unsupported value: 'minimal'", "param": "reasoning_effort", "code": "unsupported_value"},
        {
            "message": "litellm.UnsupportedParamsError: m does not support parameters: ['reasoning_effort'], for model",
            "code": "400",
        },
    ],
)
def test_servers_say_what_their_model_cannot_be_asked(error: dict[str, str]) -> None:
    """A field that the server's model does not take is the link's lack, by which the chain passes."""
    found = map_error("b", 400, json.dumps({"error": error}).encode(), None)
    assert isinstance(found, UnsupportedError)
    assert found.fields == ("reasoning_effort",)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "smol is not a multimodal model"),
        (400, "Invalid content type. image_url is only supported by certain models."),
        (400, "this model does not support image input"),
        (400, "Model does not support images. Please use a model that does."),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
    ],
)
def test_servers_say_in_many_words_that_a_model_is_blind(status: int, message: str) -> None:
    """Each is the link's lack, by which the chain passes, and neither the caller's fault nor the link's failure."""
    body = httpx.Response(status, json={"error": {"message": message}}).content
    error = map_error("b", status, body, None)
    assert type(error).__name__ == "UnsupportedError"
    assert "cannot do images" in str(error)
    other = httpx.Response(status, json={"error": {"message": "the image is broken"}}).content
    assert type(map_error("b", status, other, None)).__name__ != "UnsupportedError"
