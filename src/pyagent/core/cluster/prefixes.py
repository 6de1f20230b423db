"""Which prompts a node has computed lately, as keys that tell nothing of their text to who has not the text.

A prompt's text is cut into pieces of 256 characters, a very long one's rest into longer ones; the key of each hashes
the piece and the key before it, as the engine's block hashes do with tokens. So two prompts share as many keys as they
share whole pieces from their beginning. Text is cut, not tokens, because the node that routes a request may not have
the model.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b

from pyagent.core.messages import ChatRequest, ImagePart

PIECE_CHARS = 256
LONG_PIECE_CHARS = 4096
NUM_SHORT_PIECES = 512
MAX_PIECES = 1024
MAX_KEYS = 16_384
"""Keys that a node keeps of itself and of each peer: prompts of four million characters, 128 KiB on the wire."""
_KEY_BYTES = 8
_IMAGE_CHARS = 128


def prefix_keys(request: ChatRequest, secret: bytes = b"") -> list[int]:
    """Return the keys of a request's prompt, from its beginning; those of two tenants or models are never equal.

    `secret` is the cluster's: who has none cannot try which texts a key is of.
    """
    seed = f"{request.origin.tenant}\0{request.model}".encode(errors="surrogatepass")
    key = blake2b(seed, key=secret[:64], digest_size=_KEY_BYTES).digest()
    keys: list[int] = []
    for piece in _pieces(request):
        key = blake2b(key + piece.encode(errors="surrogatepass"), key=secret[:64], digest_size=_KEY_BYTES).digest()
        keys.append(int.from_bytes(key))
    return keys


def _pieces(request: ChatRequest) -> Iterator[str]:
    """Yield the whole pieces of a prompt: what comes after the last whole one may go on differently."""
    text = "".join(_texts(request))
    for number in range(MAX_PIECES):
        start, end = _chars_of(number), _chars_of(number + 1)
        if end > len(text):
            return
        yield text[start:end]


def _chars_of(num_pieces: int) -> int:
    """Return how long the text of a prompt's first pieces is."""
    num_long = max(0, num_pieces - NUM_SHORT_PIECES)
    return (num_pieces - num_long) * PIECE_CHARS + num_long * LONG_PIECE_CHARS


_MAX_CHARS = _chars_of(MAX_PIECES)


def _texts(request: ChatRequest) -> Iterator[str]:
    """Yield what comes into a prompt, in order, until there is enough of it."""
    num_chars = 0
    for text in _all_texts(request):
        yield text[:_MAX_CHARS]
        num_chars += len(text)
        if num_chars >= _MAX_CHARS:
            return


def _all_texts(request: ChatRequest) -> Iterator[str]:
    for tool in request.tools:
        function = tool.function
        yield f"\x1d{function.name}\x1f{function.description}\x1f{function.parameters}"
    if not request.messages:
        yield request.prompt or ""
    for message in request.messages:
        yield f"\x1e{message.role}\x1f"
        yield message.text
        yield from (_image_text(part) for part in message.content or () if isinstance(part, ImagePart))
        yield from (f"\x1f{call.function.name}\x1f{call.function.arguments}" for call in message.tool_calls or ())


def _image_text(part: ImagePart) -> str:
    """Return what tells an image from others, mostly: it may be megabytes, and is hashed for each request."""
    url = part.image_url.url
    return f"\x1c{len(url)}\x1f{url[:_IMAGE_CHARS]}\x1f{url[-_IMAGE_CHARS:]}"


def num_matching(keys: Sequence[int], warm: Collection[int]) -> int:
    """Return how many keys of a prompt, from its beginning, are among those of a node."""
    for number, key in enumerate(keys):
        if key not in warm:
            return number
    return len(keys)


def warm_share(keys: Sequence[int], warm: Collection[int]) -> float:
    """Return how much of a prompt's text a node has computed, from 0 to 1.

    The rest after the last piece is half of one, on average.
    """
    whole = (_chars_of(len(keys)) + _chars_of(len(keys) + 1)) / 2
    return _chars_of(num_matching(keys, warm)) / whole


def num_warm_tokens(keys: Sequence[int], warm: Collection[int], num_tokens: int) -> int:
    """Return about how many of a prompt's tokens a node has computed: a share, as scripts differ in a text's tokens."""
    return int(num_tokens * warm_share(keys, warm))


def pack(keys: Iterable[int]) -> bytes:
    """Return keys as they cross, 8 bytes each."""
    return b"".join(struct.pack("!Q", key) for key in keys)


def unpack(data: bytes) -> list[int]:
    """Return the keys of a message, `MAX_KEYS` at most; bytes that make no whole key are dropped."""
    num_keys = min(len(data) // _KEY_BYTES, MAX_KEYS)
    return list(struct.unpack(f"!{num_keys}Q", data[: num_keys * _KEY_BYTES]))


class WarmPrefixes:
    """The keys of the prompts that a node computed last; the least recently used go first, as its cache evicts."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._keys: OrderedDict[int, None] = OrderedDict()
        self._max_keys = max_keys

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def add(self, keys: Iterable[int]) -> list[int]:
        """Note that these were computed; return those that were not there."""
        new: list[int] = []
        for key in keys:
            if key in self._keys:
                self._keys.move_to_end(key)
            else:
                self._keys[key] = None
                new.append(key)
        while len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)
        return new

    def clear(self) -> None:
        """Forget all: the node was started anew."""
        self._keys.clear()
