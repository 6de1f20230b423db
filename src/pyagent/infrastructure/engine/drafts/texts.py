"""The texts that drafts are copied from: a request's own, and what earlier requests of its tenant were answered.

Indexes hold a fixed number of tokens each, and are reserved in the model's ledger before they are made. What one tenant
was answered is proposed to no other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pyagent._rust import TokenIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyagent.infrastructure.engine.memory.ledger import Reservation

_TOKEN_BYTES = 12
"""Of an index: a token, the place before it with the same key, and the last place of a key."""
_MOST_OWN, _LEAST_OWN = 1 << 17, 1 << 10
_SHARED = 1 << 18
"""Tokens of a tenant's answers; 3 MB."""
_CONTEXT = 8
"""Tokens of the prompt's end that stand before an answer, so that its first ones can be proposed."""


class TextMemory:
    """Bytes that indexes may take in all, of which the ledger has what they hold."""

    def __init__(self, most_bytes: int, reservation: Reservation | None = None) -> None:
        self._most_bytes = most_bytes
        self._reservation = reservation
        self.num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Hold so many more; False, and nothing changed, where there is no room."""
        wanted = self.num_bytes + num_bytes
        if wanted > self._most_bytes or not (self._reservation is None or self._reservation.try_resize(wanted)):
            return False
        self.num_bytes = wanted
        return True

    def give(self, num_bytes: int) -> None:
        """Hold so many less."""
        self.num_bytes -= num_bytes
        if self._reservation is not None and not self._reservation.is_released:
            self._reservation.try_resize(self.num_bytes)


class OwnText:
    """An index of a request's prompt and answer, with texts before it that its answer may be like."""

    def __init__(self, index: TokenIndex, num_bytes: int) -> None:
        self.index = index
        self.num_bytes = num_bytes
        self.num_read = 0

    @classmethod
    def begin(
        cls, tokens: Sequence[int], predicted: Sequence[int], most_more: int, least: int, memory: TextMemory
    ) -> OwnText | None:
        """Return an index of a request that may write `most_more` tokens; None where there is no memory for it."""
        wanted = min(_MOST_OWN, len(tokens) + len(predicted) + min(most_more, _LEAST_OWN))
        size = max(_LEAST_OWN, 1 << (wanted - 1).bit_length())
        if not memory.take(size * _TOKEN_BYTES):
            return None
        text = cls(TokenIndex(least, size), size * _TOKEN_BYTES)
        if predicted:
            text.index.extend(list(predicted))
            text.index.end_text()
        return text

    def read(self, tokens: list[int]) -> None:
        """Take in what a request's log has more than before."""
        self.index.extend(tokens[self.num_read :])
        self.num_read = len(tokens)


class SharedTexts:
    """Answers of earlier requests, by tenant (and adapter); the tenant that was answered longest ago goes first."""

    def __init__(self, least: int, memory: TextMemory) -> None:
        self._least = least
        self._memory = memory
        self._indexes: OrderedDict[str, TokenIndex] = OrderedDict()

    def of(self, tenant: str) -> TokenIndex | None:
        """Return a tenant's answers, if there are any."""
        return self._indexes.get(tenant)

    def remember(self, tenant: str, prompt: list[int], answer: list[int]) -> None:
        """Take in an answer, with the end of its prompt."""
        index = self._indexes.get(tenant) or self._make(tenant)
        if index is not None:
            self._indexes.move_to_end(tenant)
            index.extend(prompt[-_CONTEXT:] + answer)
            index.end_text()

    def forget_oldest(self) -> bool:
        """Give up the answers of the tenant that was answered longest ago; False where there are none."""
        if not self._indexes:
            return False
        self._indexes.popitem(last=False)
        self._memory.give(_SHARED * _TOKEN_BYTES)
        return True

    def _make(self, tenant: str) -> TokenIndex | None:
        while not self._memory.take(_SHARED * _TOKEN_BYTES):
            if not self.forget_oldest():
                return None
        index = self._indexes[tenant] = TokenIndex(self._least, _SHARED)
        return index
