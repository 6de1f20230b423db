"""`private` holds in every API: such a request goes to links of `rules.private` alone, or to nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from support.server import Model, serving

from pyagent.core.chain import Chain
from pyagent.core.messages import EmbedRequest, EmbedResult

HELLO = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/embeddings": {"input": "hi"},
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "hi"},
    "/api/embed": {"input": "hi"},
    "/api/embeddings": {"prompt": "hi"},
}


class Far(Model):
    """A link that is not in `rules.private`."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "far:m"
        self.num_embedded = 0

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        self.num_embedded += 1
        return EmbedResult(vectors=[[1.0] for _ in request.input], model="m")


@pytest.mark.parametrize("path", ASKED)
def test_private_request_reaches_no_other_link(path: str) -> None:
    """What is not marked is answered by the link; marked, it is refused and the link hears nothing of it."""

    async def main() -> None:
        far = Far()
        async with serving(Chain([far], private=["native"])) as url, httpx.AsyncClient(base_url=url) as http:
            body = {"model": "m"} | ASKED[path]
            assert (await http.post(path, json=body)).status_code == 200
            num_asked = len(far.requests) + far.num_embedded
            refused = await http.post(path, json=body | {"private": True})
            assert (refused.status_code, "private" in refused.text) == (400, True)
            assert len(far.requests) + far.num_embedded == num_asked == 1

    asyncio.run(main())


def test_response_that_goes_on_from_a_private_one_is_private() -> None:
    """A kept response stays private: what goes on from it holds its text."""

    async def main() -> None:
        far = Far()
        chain = Chain([far], private=["far"])
        async with serving(chain) as url, httpx.AsyncClient(base_url=url) as http:
            first = (await http.post("/v1/responses", json={"input": "my PIN is 9481", "private": True})).json()
            chain.private = ["native"]
            more = {"input": "what is it?", "previous_response_id": first["id"]}
            assert (await http.post("/v1/responses", json=more)).status_code == 400
            assert (await http.post("/v1/responses", json={"input": "hi"})).status_code == 200
            assert len(far.requests) == 2

    asyncio.run(main())
