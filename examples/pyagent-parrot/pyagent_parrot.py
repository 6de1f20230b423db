"""A runner without weights: after each token comes the one that followed it last time."""

from array import array
from collections.abc import Sequence
from pathlib import Path

from pyagent.plugin import (
    Batch,
    KvReservation,
    LargestStep,
    ModelNeeds,
    ModelRunner,
    PagedRunner,
    RunnerFactory,
    RunnerInfo,
    RunnerOptions,
    StepOutput,
    describe_model,
    hookimpl,
)


class ParrotRunner(PagedRunner):
    """Reads what the pool knows of its sequences, where a model would read their keys and values."""

    def execute(self, batch: Batch) -> StepOutput:
        logits = array("f", bytes(4 * self.vocab_size * len(batch.samplers)))
        start = 0
        for row in range(len(batch.samplers)):
            sequence_id, end = batch.sequence_ids[row], start + batch.lengths[row]
            likely = self.next_token(sequence_id, [*self.pool.tokens(sequence_id), *batch.tokens[start:end]])
            logits[row * self.vocab_size + likely] = 20.0
            start = end
        return self.finish_step(batch, logits)

    def next_token(self, sequence_id: int, tokens: list[int]) -> int:
        return follower(tokens)


def follower(tokens: list[int]) -> int:
    before = [at for at in range(len(tokens) - 1) if tokens[at] == tokens[-1]]
    return tokens[before[-1] + 1] if before else tokens[0]


class Parrot:
    name = "parrot"

    def unavailable_reason(self) -> str | None:
        return None  # a GPU's runner says here that there is no GPU

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        model = describe_model(path)
        return ModelNeeds(model.vocab_size, model.context_length, weight_bytes=0, workspace_bytes=0, page_bytes=0)

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        model = describe_model(path)
        info = RunnerInfo(
            "parrot", model.vocab_size, model.context_length, weight_bytes=0, num_pages=4096, page_bytes=0
        )
        return ParrotRunner(info, options)


@hookimpl
def pyagent_register_runners() -> Sequence[RunnerFactory]:
    return [Parrot()]
