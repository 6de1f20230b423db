"""The `context` of /api/generate: numbers a client sends back to go on, which hold the conversation itself.

Ollama's are token ids of its own; clients only pass them on. Ours are the messages as JSON, three bytes a number, so
that any backend can go on from them and the server keeps nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import Message

_LENGTH_BYTES, _CHECK_BYTES = 4, 4


def write_context(messages: Sequence[Message]) -> list[int]:
    """Return the numbers for a conversation."""
    body = msgspec.json.encode(messages)
    whole = len(body).to_bytes(_LENGTH_BYTES, "big") + zlib.crc32(body).to_bytes(_CHECK_BYTES, "big") + body
    whole += bytes(-len(whole) % 3)
    return [int.from_bytes(whole[index : index + 3], "big") for index in range(0, len(whole), 3)]


def read_context(numbers: Sequence[int]) -> list[Message]:
    """Return the conversation that numbers stand for; raises `RequestError` for numbers that are not ours."""
    try:
        whole = b"".join(number.to_bytes(3, "big") for number in numbers)
        length = int.from_bytes(whole[:_LENGTH_BYTES], "big")
        check, body = whole[_LENGTH_BYTES:][:_CHECK_BYTES], whole[_LENGTH_BYTES + _CHECK_BYTES :][:length]
        is_ours = len(body) == length and zlib.crc32(body) == int.from_bytes(check, "big")
        return msgspec.json.decode(body if is_ours else b"", type=list[Message])
    except (OverflowError, msgspec.DecodeError) as error:
        text = "context is not one that this server gave; send back an answer's context unchanged, or none"
        raise RequestError(text, param="context") from error
