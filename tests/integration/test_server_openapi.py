"""The description of the API: complete, and true enough to be fuzzed from."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_value
from support.server import HI, Model

from pyagent.core.errors import RequestError
from pyagent.infrastructure.server.anthropic.requests import read_count, read_messages
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.ollama.requests import read_chat, read_embed, read_generate, read_model
from pyagent.infrastructure.server.openai.embeddings import read_embeddings
from pyagent.infrastructure.server.openapi import BODIES
from pyagent.infrastructure.server.responses.requests import read_response
from pyagent.infrastructure.server.route_table import APIS
from pyagent.testing import serve


def test_openapi_describes_every_route() -> None:
    """Every path with its methods is there, and every reference leads to a schema."""
    app = create_app(Model())
    with serve(app) as url:
        described = httpx.get(f"{url}/openapi.json").json()
    assert set(described["paths"]) == {path.replace(":path", "") for path in app.paths} - {"/"}
    for api in APIS:
        operation = described["paths"][api.path.replace(":path", "")][api.method.lower()]
        assert ("requestBody" in operation) == (api.method == "POST"), api.path
    assert set(BODIES) <= set(described["paths"])
    for reference in set(json.dumps(described).split('"$ref": "#/components/schemas/')[1:]):
        assert reference.partition('"')[0] in described["components"]["schemas"]
    schema = described["components"]["schemas"]
    assert any("temperature" in entry.get("properties", {}) for entry in schema.values())


block = st.fixed_dictionaries({"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "function_call"])})
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": json_value | st.lists(block, max_size=2)}
)


@pytest.mark.parametrize(
    ("read", "path"),
    [
        (read_chat, "/api/chat"),
        (read_generate, "/api/generate"),
        (read_embed, "/api/embed"),
        (read_model, "/api/show"),
        (read_messages, "/v1/messages"),
        (read_count, "/v1/messages/count_tokens"),
        (lambda body: read_embeddings(body).texts, "/v1/embeddings"),
        (lambda body: read_response(body).request([]), "/v1/responses"),
    ],
)
@given(st.data())
def test_any_body_is_understood_or_refused(read: Any, path: str, data: st.DataObject) -> None:
    """No body makes reading it fail in any way but `RequestError`, whichever API it is for."""
    names = list(BODIES[path].__struct_encode_fields__)
    change = data.draw(st.dictionaries(st.sampled_from(names) | st.text(max_size=5), json_value, max_size=5))
    base: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": HI, "input": "x", "prompt": "x"}
    base = {name: value for name, value in base.items() if name in names}
    if data.draw(st.booleans()):
        base |= {name: data.draw(st.lists(message, max_size=3)) for name in ("messages", "input") if name in names}
    for body in (json.dumps(base | change).encode(), msgspec.json.encode(change), data.draw(st.binary(max_size=30))):
        with suppress(RequestError):
            read(body)
