"""Responses that clients may read again and go on from: in memory, for some time, up to so many bytes.

A response belongs to the API key that asked for it; for others it is not there. The oldest go first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response as it was told; `items` is the whole conversation up to its end, of which `num_input` were asked."""

    client: str
    body: JsonObject
    items: list[JsonObject]
    first_input: int
    num_input: int
    size_bytes: int
    until: float

    @property
    def input_items(self) -> list[JsonObject]:
        """What was asked."""
        return self.items[self.first_input : self.first_input + self.num_input]


@dataclass(slots=True)
class KeptResponses:
    """The responses kept, oldest first."""

    max_bytes: int
    seconds: float
    _kept: OrderedDict[str, KeptResponse] = field(default_factory=OrderedDict[str, KeptResponse])
    _num_bytes: int = 0

    def keep(self, client: str, body: JsonObject, history: list[JsonObject], asked: list[JsonObject]) -> None:
        """Keep a response of a client, that answers what was `asked` after `history`."""
        output = msgspec.convert(body["output"], list[JsonObject])
        items = [*history, *asked, *output]
        size = len(msgspec.json.encode(items)) + len(msgspec.json.encode(body))
        until = time.monotonic() + self.seconds
        self._kept[str(body["id"])] = KeptResponse(client, body, items, len(history), len(asked), size, until)
        self._num_bytes += size
        self._forget_old()

    def find(self, id: str, client: str, *, param: str | None = None) -> KeptResponse:  # noqa: A002 - the API's word
        """A client's response; raises `RequestError` when it is not kept (any more)."""
        self._forget_old()
        found = self._kept.get(id)
        if found is None or found.client != client:
            text = f"response {id[:80]!r} is not kept; it was not stored, is gone by age, or is another key's"
            raise RequestError(text, param=param, code="response_not_found")
        return found

    def remove(self, id: str, client: str) -> None:  # noqa: A002 - the API's word
        """Forget a client's response; raises `RequestError` when it is not kept."""
        self.find(id, client)
        self._num_bytes -= self._kept.pop(id).size_bytes

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.until > now and self._num_bytes <= self.max_bytes:
                return
            self._kept.popitem(last=False)
            self._num_bytes -= oldest.size_bytes
