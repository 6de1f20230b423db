"""How a runner comes to be: what a plugin brings, what it is told, and the memory it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from pyagent.core.eviction import EvictionPolicyFactory
from pyagent.core.runners.attention import AUTO_ATTENTION, AttentionChoice

if TYPE_CHECKING:
    from pyagent._rust import LoadProgress
    from pyagent.core.runners.architecture import BroughtArchitecture
    from pyagent.core.runners.rank_executor import RankExecutor
    from pyagent.core.runners.runner import ModelRunner

KvDtype = Literal["auto", "f32", "f16", "bf16", "int8", "fp8"]
Dtype = Literal["auto", "f32", "f16", "bf16"]
Quantization = Literal["auto", "keep", "none"]
PrefixHash = Literal["siphash", "sha256", "xxh3"]


def _least_recently_used(num_pages: int) -> str:
    return "lru"


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to load a model: what the settings say of every runner.

    `threads` are those that compute (0: one for each core), `kv_bytes` the most that KV memory may take (None: the
    runner chooses), `kv_dtype` its data type, `dtype` that of products ("auto": the runner chooses both), `isa` the
    instruction set (None: the best), `quantization` whether weights stay quantised as a file has them ("auto": the
    runner chooses), `attention` the backends that may compute attention. With `batch_invariant` a token's logits are
    the same bits in any batch and chunk. With a `compile_folder`, what helps when compiled is, and is kept there.
    `eviction` makes the order in which cached KV is given up; `prefix_hash` names cached prefixes. A model is divided
    among `tensor_parallel_size * pipeline_parallel_size` devices; `num_sharing` engines see the same ones, which
    runners of GPUs refuse above 1, as those of each copy are to be its own. A runner of several processes calls
    `when_lost` with the reason, from any thread, when one of them ends or is at a step for `hang_seconds`, and raises
    `RunnerLostError` in what needs them from then on. `rank_executor` starts such processes (None: the runner itself).
    Of a GPU's memory the engine may take `gpu_memory_utilization`. Without `mtp`, a head that drafts
    further tokens is left alone; with the folder of a `head`, KV pages have room for that, and it is to be attached
    (`DraftingRunner.attach_drafter`). `architectures` are plugins' by name, of models that
    a runner itself does not know. To `progress`, where there is one, a runner adds the bytes of weights that it has
    loaded, of those that `estimate` said: `progress.add(num_bytes)`, from any thread. It is the counter behind what
    programs are told as `pyagent.LoadProgress`.
    """

    threads: int = 0
    kv_bytes: int | None = None
    kv_dtype: KvDtype = "auto"
    dtype: Dtype = "auto"
    isa: str | None = None
    quantization: Quantization = "auto"
    attention: AttentionChoice = AUTO_ATTENTION
    batch_invariant: bool = False
    compile_folder: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    num_sharing: int = 1
    hang_seconds: float | None = None
    rank_executor: RankExecutor | None = None
    gpu_memory_utilization: float = 0.9
    when_lost: Callable[[str], None] | None = None
    eviction: EvictionPolicyFactory = _least_recently_used
    prefix_hash: PrefixHash = "siphash"
    mtp: bool = True
    head: Path | None = None
    architectures: Mapping[str, BroughtArchitecture] = field(default_factory=lambda: MappingProxyType({}))
    progress: LoadProgress | None = None

    @property
    def num_ranks(self) -> int:
        """Devices among which a model is divided."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class LargestStep(NamedTuple):
    """Bounds of every step: its tokens, the sequences that sample, and the positions of a sequence.

    Without `num_positions`, they go up to the model's context.
    """

    num_tokens: int
    num_outputs: int
    num_positions: int | None = None


class DeviceMemory(NamedTuple):
    """A device's own memory: the device's name, and the bytes that this process may have of it, what it has included.

    Of several devices, the first one's name and all their bytes.
    """

    name: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model takes of memory, said from its header before it is loaded.

    `workspace_bytes` is what its steps compute in. KV memory is pages of `page_bytes`, in groups as in `RunnerInfo`.
    Where these lie in a device's own memory, `device` says in which; else they lie in this machine's.
    """

    vocab_size: int
    context_length: int
    weight_bytes: int
    workspace_bytes: int
    page_bytes: int
    kv_groups: tuple[tuple[str, int, int], ...] = (("full", 0, 1),)
    device: DeviceMemory | None = None


class KvReservation(Protocol):
    """The bytes that the engine's ledger holds for a runner's KV memory. Safe from any thread."""

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        ...

    @property
    def free_bytes(self) -> int:
        """Bytes it may grow by now."""
        ...

    @property
    def is_released(self) -> bool:
        """Whether the ledger has it no more."""
        ...

    def try_resize(self, num_bytes: int) -> bool:
        """Hold so many bytes; False, and nothing changed, where there is no room."""
        ...

    def ask_others(self, num_bytes: int) -> bool:
        """Ask other holders to give back so many bytes; whether there is more room now."""
        ...


class RunnerFactory(Protocol):
    """Loads models for one kind of device. `name` is what `engine.runner` calls it. Any thread may call."""

    @property
    def name(self) -> str:
        """A word such as `cuda`."""
        ...

    def unavailable_reason(self) -> str | None:
        """Return why it cannot run on this machine; None where it can. Asked when a model is to be loaded."""
        ...

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        """Return what the model in a GGUF file or safetensors folder will take; loads nothing.

        Raises `ModelError` for a model it cannot run, `ConfigError` for an option it cannot follow.
        """
        ...

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        """Load the model. KV memory grows from what `kv` holds up to `options.kv_bytes`; without `kv` it is all there.

        Raises `ModelError` or `ConfigError`.
        """
        ...


@runtime_checkable
class ChoosyRunnerFactory(Protocol):
    """A runner that can do more than it is best at: `engine.runner = "auto"` passes it over where another is better."""

    def passed_over_reason(self) -> str | None:
        """Return why `auto` takes another runner on this machine; None where it may take this one."""
        ...
