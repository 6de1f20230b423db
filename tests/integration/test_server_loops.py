"""A chain that leads back to its own server: the request is refused where it comes back, in each API's shape."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from support.server import HI, Model, fault, serving, words

from pyagent.core import hops
from pyagent.core.messages import ChatRequest

PATHS = ("/v1/chat/completions", "/v1/messages", "/api/chat")


class Noting(Model):
    """Notes the hops that its link would send on."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.sent: list[dict[str, str]] = []

    def _note(self, _request: ChatRequest) -> list[object]:
        self.sent.append(hops.hop_headers())
        return words("Hello")


def asked(backend: Noting, headers: dict[str, str], path: str = PATHS[0], times: int = 1) -> list[httpx.Response]:
    """Answers to a request, and then to the same request with the hops that the server would have sent on."""

    async def main() -> list[httpx.Response]:
        answers: list[httpx.Response] = []
        async with serving(backend) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
            for _ in range(times):
                body = {"model": "m", "messages": HI} | ({} if path == "/api/chat" else {"max_tokens": 3})
                answers.append(await http.post(path, json=body, headers=headers | (backend.sent or [{}])[-1]))
        return answers

    return asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_request_that_came_from_the_server_itself_is_508(path: str) -> None:
    """What comes back to its own server is refused before anybody is asked, in the shape of the API called."""
    backend = Noting()
    first, second = asked(backend, {}, path, times=2)
    assert (first.status_code, second.status_code) == (200, 508)
    assert "leads back to it" in second.text
    assert len(backend.requests) == 1
    if path == PATHS[0]:
        assert fault(second)["code"] == "loop_detected"


def test_request_that_passed_too_many_servers_is_508() -> None:
    """A circle through servers that name themselves anew is ended by its length; what is no id does not count."""
    backend = Noting()
    few, many = (",".join(f"server{number}" for number in range(count)) for count in (hops.MAX_HOPS - 1, hops.MAX_HOPS))
    assert asked(backend, {hops.HEADER: few + ", <no id>"})[0].status_code == 200
    assert backend.sent[0][hops.HEADER].split(",")[:-1] == few.split(",")
    assert fault(asked(Noting(), {hops.HEADER: many})[0])["code"] == "loop_detected"


def test_hops_are_told_only_within_a_request() -> None:
    """A program that is no server sends no hops."""
    assert hops.hop_headers() == {}
