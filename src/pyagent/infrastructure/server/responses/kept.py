"""Responses that clients may read again and go on from: in memory, for some time, up to so many bytes.

A response belongs to the API key that asked for it; for others it is not there. The oldest go first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.lru import ByteBoundedLru
from pyagent.core.messages import JsonObject


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response as it was told; `items` is the whole conversation up to its end, of which `num_input` were asked."""

    body: JsonObject
    items: list[JsonObject]
    first_input: int
    num_input: int
    until: float

    @property
    def input_items(self) -> list[JsonObject]:
        """What was asked."""
        return self.items[self.first_input : self.first_input + self.num_input]

    def output_item(self, id: str, where: str) -> JsonObject:  # noqa: A002 - the API's word
        """Return an item of what was answered. Raises `RequestError` naming `where` it was asked for."""
        item = next((item for item in self.items[self.first_input + self.num_input :] if item["id"] == id), None)
        if item is None:
            raise RequestError(
                f"response {self.body['id']} has no item {id[:80]!r}", param=where, code="item_not_found"
            )
        return item


@dataclass(slots=True)
class KeptResponses:
    """The responses kept, oldest first."""

    max_bytes: int
    seconds: float
    _kept: ByteBoundedLru[tuple[str, str], KeptResponse] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = ByteBoundedLru(lambda num_bytes: num_bytes <= self.max_bytes)

    def keep(self, client: str, body: JsonObject, history: list[JsonObject], asked: list[JsonObject]) -> None:
        """Keep a response of a client, that answers what was `asked` after `history`."""
        output = msgspec.convert(body["output"], list[JsonObject])
        items = [*history, *asked, *output]
        size = len(msgspec.json.encode(items)) + len(msgspec.json.encode(body))
        until = time.monotonic() + self.seconds
        self._forget_old()
        key = (client, str(body["id"]))  # a client may choose the id of its request, and by that the response's
        self._kept.put(key, KeptResponse(body, items, len(history), len(asked), until), size)

    def find(self, id: str, client: str, *, param: str | None = None) -> KeptResponse:  # noqa: A002 - the API's word
        """Return a client's response; raises `RequestError` when it is not kept (any more)."""
        self._forget_old()
        found = self._kept.peek((client, id))  # all are kept equally long, so the first kept is the first to go
        if found is None:
            text = f"response {id[:80]!r} is not kept; it was not stored, is gone by age, or is another key's"
            raise RequestError(text, param=param, code="response_not_found")
        return found

    def with_referenced(self, items: list[JsonObject], client: str) -> tuple[list[JsonObject], bool]:
        """Return a client's items, each reference to an item of a kept response replaced, and whether any is private.

        Raises `RequestError` for what is not kept, and for a second reference: with those a short request could name a
        conversation without bound.
        """
        seen: set[str] = set()
        found: list[JsonObject] = []
        is_private = False
        for number, item in enumerate(items):
            if item.get("type") != "item_reference":
                found.append(item)
                continue
            where, item_id = f"input[{number}].id", str(item.get("id"))
            if item_id in seen:
                raise RequestError(f"{where} is in the input already", param=where)
            seen.add(item_id)
            response_id = item_id.partition("_")[2].rpartition("_")[0]  # as `ResponseEncoder` names items
            response = self.find(f"resp_{response_id}", client, param=where)
            found.append(response.output_item(item_id, where))
            is_private |= bool(response.body.get("private"))
        return found, is_private

    def remove(self, id: str, client: str) -> None:  # noqa: A002 - the API's word
        """Forget a client's response; raises `RequestError` when it is not kept."""
        self.find(id, client)
        self._kept.pop((client, id))

    def _forget_old(self) -> None:
        now = time.monotonic()
        while (oldest := self._kept.oldest()) is not None and oldest.until <= now:
            self._kept.pop_oldest()
