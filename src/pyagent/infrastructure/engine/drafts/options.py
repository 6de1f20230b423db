"""What can be chosen of speculative decoding; imports nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyagent.core.runners.runner import ModelRunner

DraftMethod = Literal["ngram", "suffix", "draft_model"]


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Where drafts are from: a request's own texts (`ngram`), earlier answers too (`suffix`), or a `draft_model` too.

    A request has `num_speculative_tokens` in a step at most; `prompt_lookup_min` of its last tokens are found again at
    least. The texts take `most_bytes`. A model's own head drafts where it has one, unless `uses_mtp` is False or a
    draft model does. `models` are draft models by the models that they draft for, the one under ""
    for all others. `faults_told` is what was wrong with them before any was loaded.
    """

    method: DraftMethod = "suffix"
    num_speculative_tokens: int = 7
    prompt_lookup_min: int = 2
    most_bytes: int = 32 << 20
    uses_mtp: bool = True
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    faults_told: frozenset[str] = frozenset()

    def of(self, runner: ModelRunner) -> DraftOptions | None:
        """Return them with no more drafts of a request than a runner verifies; None where it verifies none."""
        if not runner.verifies_drafts:
            return None
        most = self.num_speculative_tokens if runner.most_drafts is None else runner.most_drafts
        return replace(self, num_speculative_tokens=min(self.num_speculative_tokens, most))

    @property
    def shares_texts(self) -> bool:
        """Whether earlier answers are copied."""
        return self.method != "ngram"

    def model_for(self, name: str) -> str | None:
        """Return the draft model of a model; None where it has none, as no model drafts for itself."""
        draft = self.models.get(name) or self.models.get("")
        return draft if self.method == "draft_model" and draft != name else None

    def has_mtp(self, name: str) -> bool:
        """Whether the head of a model is to be loaded, if the model has one."""
        return self.uses_mtp and self.model_for(name) is None

    def most_rows(self, most_running: int, most_tokens: int) -> int:
        """Return the rows of logits that a step of so many requests and tokens has at most."""
        return min(max(most_running, 1 + self.num_speculative_tokens), most_tokens)
