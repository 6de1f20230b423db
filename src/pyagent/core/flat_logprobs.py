"""Log probabilities in arrays: two numbers an entry, where objects take 42 a token with `top_logprobs: 20`. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_ENTRY_BYTES = 8
"""Of a token id and a log probability, 32 bits each."""


def pack(entries: Sequence[tuple[int, float]]) -> bytes:
    """Return token ids and their log probabilities, 32 bits each: first all ids."""
    ids, logprobs = zip(*entries, strict=True)
    return array("I", ids).tobytes() + array("f", logprobs).tobytes()


@dataclass(frozen=True, slots=True)
class FlatLogprobs:
    """The log probabilities of an answer's tokens, as vLLM's class of this name has them.

    The entries of the `i`-th token are those from `starts[i]` to `starts[i + 1]`: its own, then those of the likeliest
    tokens, best first. The arrays are buffers that NumPy reads without a copy.
    """

    starts: array[int] = field(default_factory=lambda: array("I", [0]))
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))

    @classmethod
    def of(cls, packed: Iterable[bytes]) -> FlatLogprobs:
        """Return those of tokens whose entries are packed."""
        flat = cls()
        for entries in packed:
            end = len(entries) // _ENTRY_BYTES * flat.token_ids.itemsize
            flat.token_ids.frombytes(entries[:end])
            flat.logprobs.frombytes(entries[end:])
            flat.starts.append(len(flat.token_ids))
        return flat

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> list[tuple[int, float]]:
        """Return the entries of a token: its own, then the likeliest."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tokens, and none at {index}")
        index %= len(self)
        start, end = self.starts[index], self.starts[index + 1]
        return list(zip(self.token_ids[start:end], self.logprobs[start:end], strict=True))
