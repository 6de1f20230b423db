"""What can be chosen of speculative decoding; imports nothing of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DraftMethod = Literal["ngram", "suffix"]


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Where drafts are from: a request's own texts (`ngram`), or earlier answers too (`suffix`).

    A request has `num_speculative_tokens` in a step at most; `prompt_lookup_min` of its last tokens are found again at
    least. The texts take `most_bytes`.
    """

    method: DraftMethod = "suffix"
    num_speculative_tokens: int = 7
    prompt_lookup_min: int = 2
    most_bytes: int = 32 << 20

    def most_rows(self, most_running: int, most_tokens: int) -> int:
        """Return the rows of logits that a step of so many requests and tokens has at most."""
        return min(max(most_running, 1 + self.num_speculative_tokens), most_tokens)
