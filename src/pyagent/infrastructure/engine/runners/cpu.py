"""The CPU runner: the Rust model behind a paged runner."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.errors import ConfigError, ModelError
from pyagent.core.runners.batch import (
    BLOCK_TOKENS,
    PLAIN_KEY,
    Batch,
    DraftOutput,
    Likelihood,
    PrefixKey,
    ProbedToken,
    StepOutput,
)
from pyagent.core.runners.factory import KvReservation, LargestStep, RunnerOptions
from pyagent.core.runners.kv_connector import KvShape
from pyagent.core.runners.runner import RunnerInfo
from pyagent.infrastructure.engine.runners.cpu_factory import kv_type
from pyagent.infrastructure.engine.runners.family import Family, LoadableFamily
from pyagent.infrastructure.engine.runners.paged import PagedRunner
from pyagent.infrastructure.engine.runners.swap import SwapSpace

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DEFAULT_KV_BYTES = 1 << 30


class OpenedCpuAdapter:
    """An adapter's file, or those of several that add up, checked against a CPU runner's model."""

    def __init__(self, model: _rust.CpuModel, paths: Sequence[Path]) -> None:
        """Raise `_rust.ModelFileError` naming what is wrong with one of them."""
        self._model = model
        self._paths = paths
        self._file = file = _rust.AdapterFile.open(model, *paths)
        self.is_dora = file.is_dora
        self.num_bytes = file.bytes
        self.rank = file.rank

    def step_bytes(self, num_tokens: int) -> int:
        """Return the bytes that steps of up to so many tokens take for it beside what they take without."""
        return self._file.step_bytes(num_tokens)

    def load(self, adapter_id: int) -> None:
        """Load it. Raises `ModelError`."""
        try:
            self._file.load(self._model, adapter_id)
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(self._paths[0])) from error


class CpuRunner(PagedRunner):
    """Computes batches on this machine's cores. Not for concurrent use: one engine loop owns it."""

    scores_prompts = True
    verifies_drafts = True

    def __init__(
        self,
        path: Path,
        options: RunnerOptions | None = None,
        kv: KvReservation | None = None,
        most_positions: int | None = None,
    ) -> None:
        """Load a GGUF file or safetensors folder; raises `ModelError` naming what is wrong with it.

        A folder of one of the options' architectures is read as that describes it; `PluginError` where that is wrong.
        With a reservation, KV memory grows from what it holds as far as its ledger has room; without, it is all there.
        Texts have up to `most_positions`, or the model's context.
        """
        options = options or RunnerOptions()
        self.num_threads = options.threads or _rust.available_cores()
        family = Family.of(path, options.architectures)
        loadable = None if family is None else family.evaluated()
        with nullcontext() if family is None else family.named():
            self.model = _load(path, options, self.num_threads, most_positions, loadable)
        self._progress = options.progress
        about = self.model.info()
        info = RunnerInfo(
            architecture=about["architecture"] if family is None else family.name,
            vocab_size=about["vocab_size"],
            context_length=about["context_length"],
            weight_bytes=about["weight_bytes"],
            num_pages=about["num_pages"],
            page_bytes=about["page_bytes"],
            kv_groups=tuple(about["kv_groups"]),
            probes=_probes(about),
            num_layers=about["num_layers"],
            decoder_start=about["decoder_start"],
        )
        self._kv_shape = KvShape(
            kv_dtype=kv_type(options),
            num_kv_heads=about["num_kv_heads"],
            head_dim=about["head_dim"],
            rope=about["rope"],
            block_tokens=BLOCK_TOKENS,
            groups=info.kv_groups,
            layers_per_page=about["layers_per_page"],
            layer_bytes=info.page_bytes // about["layers_per_page"],
            family="" if loadable is None else loadable.digest,
        )
        super().__init__(info, options, kv)
        has_states = any(kind == "state" for kind, _, _ in info.kv_groups)
        # Wherever drafts turn out to end, a state is kept: in the block of the token before them, or in the next one.
        self.most_drafts = BLOCK_TOKENS if has_states else None
        # Tokens ahead of the pool's would be in the state for good.
        self.computes_ahead = not has_states
        self._has_prompts = info.decoder_start is not None
        self.scores_prompts = self.scores_prompts and not self._has_prompts  # an encoder gives no likelihoods
        self.has_mtp = about["has_mtp"]
        self._swap = SwapSpace(self.model, self.pool, info.page_bytes)

    def add(
        self,
        sequence_id: int,
        tokens: list[int],
        key: PrefixKey = PLAIN_KEY,
        *,
        is_resumed: bool = False,
        most_cached: int | None = None,
    ) -> int:
        """Start a sequence on its longest cached prefix; returns how many of its tokens need no computing."""
        self._note_prompt(sequence_id, key)
        return super().add(sequence_id, tokens, key, is_resumed=is_resumed, most_cached=most_cached)

    def swap_in(self, sequence_id: int, key: PrefixKey = PLAIN_KEY) -> bool:
        """Start a swapped sequence where it was; False, and nothing changed, without memory. `OSError` if lost."""
        is_in = super().swap_in(sequence_id, key)
        if is_in:
            self._note_prompt(sequence_id, key)
        return is_in

    def fork(self, parent: int, child: int) -> bool:
        """Start `child` as a copy of `parent`, whole blocks shared; False, and nothing changed, without memory."""
        is_forked = super().fork(parent, child)
        if is_forked and self._has_prompts:
            self.model.share_prompt(parent, child)
        return is_forked

    def swap_out(self, sequence_id: int) -> bool:
        """End a sequence but keep what it computed in a file; False, and nothing changed, if it cannot be."""
        is_out = super().swap_out(sequence_id)
        if is_out:
            self._note_prompt(sequence_id, PLAIN_KEY)
        return is_out

    def release(self, sequence_id: int) -> None:
        """End a sequence; what it computed may be found again as a prefix."""
        super().release(sequence_id)
        self._note_prompt(sequence_id, PLAIN_KEY)

    def _note_prompt(self, sequence_id: int, key: PrefixKey) -> None:
        """Note what an encoder-decoder's sequence begins with; nothing where it ends."""
        if self._has_prompts and (model := vars(self).get("model")) is not None:
            model.set_prompt(sequence_id, key.encoded or None)

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch and sample the tokens it asks for; the pool learns what was computed."""
        tokens, likelihoods, errors, further, probed = self.model.execute(
            self.pool,
            batch.sequence_ids,
            batch.lengths,
            batch.tokens,
            batch.samplers,
            batch.steps,
            batch.masks,
            scores=batch.scores,
            process=batch.process,
            processed=batch.processed,
            num_drafts=batch.num_drafts,
            num_ahead=batch.num_ahead,
            probes={row: (probe.num_neurons, probe.num_lens_tokens) for row, probe in batch.probes.items()},
        )
        output = StepOutput(tokens, errors=errors)
        output.likelihoods = {row: Likelihood(*likelihood) for row, likelihood in likelihoods.items()}
        output.probed = {row: [ProbedToken(*one) for one in told] for row, told in probed.items()}
        for row, sampled in further.items():
            output.more[row] = [token for token, _ in sampled]
            output.more_likelihoods[row] = [Likelihood(*likelihood) for _, likelihood in sampled if likelihood]
        return output

    def draft(
        self,
        sequence_ids: Sequence[int],
        tokens: Sequence[int],
        num_ahead: Sequence[int],
        before: Sequence[int | None],
    ) -> DraftOutput:
        """Draft a token for each of some sequences by the model's own head, or by what is attached to it."""
        return DraftOutput(*self.model.draft(self.pool, sequence_ids, tokens, num_ahead, before))

    def attach_drafter(self, path: Path | None) -> int:
        """Load an assistant or a head of the model, or free it; return its weights' bytes. Raises `ModelError`."""
        if (model := vars(self).get("model")) is None:
            return 0
        try:
            model.attach_drafter(path, self._progress)
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error
        return model.info()["drafter_weight_bytes"]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of KV pages: (from, to), in this order."""
        self.model.copy_pages(pairs)

    def empty_pages(self, pages: Sequence[int]) -> None:
        """Give the memory of pages back to the system; they read as zeros until they are used again."""
        self.model.give_back(pages)

    @property
    def kv_shape(self) -> KvShape:
        """How KV is kept."""
        return self._kv_shape

    def read_layers(self, pages: Sequence[int], first_layer: int, num_layers: int) -> bytes:
        """Return layers of pages, one page's after the other's."""
        return self.model.read_layers(pages, first_layer, num_layers)

    def write_layers(self, pages: Sequence[int], first_layer: int, num_layers: int, data: Buffer) -> None:
        """Put layers into pages."""
        self.model.write_layers(pages, first_layer, num_layers, data)

    def expert_loads(self) -> list[list[int]]:
        """Return how many tokens each expert of each layer has had; no layers without experts. Any thread."""
        model = vars(self).get("model")
        return [] if model is None else model.expert_loads()

    def step_bytes(self, step: LargestStep) -> int:
        """Return the bytes that steps up to the largest take beside weights and KV memory."""
        return self.model.step_bytes(step.num_tokens, step.num_outputs, step.num_positions or self.context_length)

    def open_adapter(self, paths: Sequence[Path]) -> OpenedCpuAdapter:
        """Open a folder of peft's or a GGUF file, or several that add up. Any thread.

        Raises `ModelError` naming what is wrong with one.
        """
        try:
            return OpenedCpuAdapter(self.model, paths)
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(paths[0])) from error

    def remove_adapter(self, adapter_id: int) -> None:
        """Forget one. Any thread. Sequences that still name it end with an error."""
        if (model := vars(self).get("model")) is not None:
            model.remove_adapter(adapter_id)

    def close(self) -> None:
        """Free the weights and the KV memory, whatever still refers to the runner. It computes nothing afterwards."""
        super().close()
        vars(self).pop("model", None)


def _probes(about: _rust.CpuModelInfo) -> frozenset[str]:
    """Which neurons a token has depends on its experts; half of an encoder-decoder's layers are halves of others."""
    if about["decoder_start"] is not None:
        return frozenset()
    return frozenset({"logit_lens"} if about["num_experts"] else {"logit_lens", "top_activations"})


def _load(
    path: Path,
    options: RunnerOptions,
    num_threads: int,
    most_positions: int | None,
    family: LoadableFamily | None,
) -> _rust.CpuModel:
    try:
        return _rust.CpuModel.load(
            path,
            threads=num_threads,
            kv_bytes=options.kv_bytes or _DEFAULT_KV_BYTES,
            kv_type=kv_type(options),
            isa=options.isa,
            swap_dir=tempfile.gettempdir(),
            most_positions=most_positions,
            mtp=options.mtp,
            head=options.head,
            family=None if family is None else family.inner,
            progress=options.progress,
        )
    except _rust.ModelFileError as error:
        if family is not None:
            raise
        raise ModelError(str(error), model=str(path)) from error
    except ValueError as error:
        raise ConfigError(str(error), key="engine.isa") from error
    except RuntimeError as error:
        raise ConfigError(f"{path} cannot be loaded: {error}", key="engine.memory") from error
