"""A PyAgent plugin with a batch processor: `aim` makes answers end after about as many tokens as a request says."""

from typing import cast

from pyagent.plugin import AddedRow, BatchLogitsProcessorFactory, BatchUpdate, Vocabulary, hookimpl


class Aim:
    """What it adds to the ends' logits: less than nothing before the mark, more and more after it."""

    def __init__(self, end_ids: frozenset[int]) -> None:
        self.end_ids = end_ids
        self.rows: list[AddedRow | None] = []

    def update_state(self, update: BatchUpdate | None) -> None:
        """Follow the rows: removed, added, moved, in this order."""
        if update is None:
            return
        for row in update.removed:
            self.rows[row] = None
        for added in update.added:
            self.rows += [None] * (added.row + 1 - len(self.rows))
            self.rows[added.row] = added
        for source, target in update.moved:
            self.rows[target] = self.rows[source]
        del self.rows[update.batch_size :]

    def apply(self, logits: "memoryview[float]") -> None:
        """All rows of the step, [rows, vocabulary]."""
        for row, request in enumerate(self.rows):
            if request is not None:
                wanted = cast("int", request.args["tokens"])  # the schema says so
                by = (len(request.output_token_ids) - wanted) / wanted
                for end in self.end_ids:
                    logits[row, end] += 20 * by if by > 0 else 5 * by


class AimFactory:
    """`{"name": "aim", "args": {"tokens": 100}}`"""

    name = "aim"
    arguments = {"properties": {"tokens": {"type": "integer", "minimum": 1}}, "required": ["tokens"]}
    is_argmax_invariant = False

    def make_batch(self, vocabulary: Vocabulary) -> Aim:
        """One for each model."""
        return Aim(vocabulary.end_ids)


@hookimpl
def pyagent_register_logits_processors() -> list[BatchLogitsProcessorFactory]:
    """The processor `aim`."""
    return [AimFactory()]
