"""Types of the Rust extension; checked against it by stubtest. What only tests and benchmarks call is marked so."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from os import PathLike
from pathlib import Path
from typing import TypedDict, final

from typing_extensions import Buffer

from pyagent.core.eviction import EvictionPolicy
from pyagent.core.messages import DrafterKind, ModelTask

__version__: str

_Likelihood = tuple[float, list[tuple[int, float]], float | None]
_Probed = tuple[list[tuple[int, int, float, float, list[int]]], list[list[tuple[int, float]]]]

class ModelFileError(Exception): ...

class OutOfBlocks(Exception):
    needed: int
    free: int

class CpuFeatures(TypedDict):
    features: list[str]
    isas: list[str]
    isa: str

class CpuModelInfo(TypedDict):
    architecture: str
    vocab_size: int
    context_length: int
    num_layers: int
    has_mtp: bool
    decoder_start: int | None
    hidden_size: int
    num_experts: int
    weight_bytes: int
    drafter_weight_bytes: int
    workspace_bytes: int
    num_pages: int
    page_bytes: int
    kv_groups: list[tuple[str, int, int]]
    kv_bytes_per_token: int
    layers_per_page: int
    num_kv_heads: int
    head_dim: int
    rope: str
    isa: str
    load_seconds: float

class EncoderShape(TypedDict):
    architecture: str
    vocab_size: int
    num_dimensions: int
    num_layers: int
    max_tokens: int
    pooling: str
    closing_token: int | None
    skips_instructions: bool
    labels: list[str] | None
    num_outputs: int
    ranks_by_words: bool
    ranks_by_tokens: bool
    labels_steps: bool
    tasks: list[tuple[str, str]]
    file_bytes: int
    weight_bytes: int
    workspace_bytes: int
    long_text_bytes: int

class EncoderInfo(TypedDict):
    architecture: str
    vocab_size: int
    num_dimensions: int
    num_layers: int
    max_tokens: int
    pooling: str
    closing_token: int | None
    skips_instructions: bool
    labels: list[str] | None
    num_outputs: int
    ranks_by_words: bool
    ranks_by_tokens: bool
    labels_steps: bool
    tasks: list[tuple[str, str]]
    weight_bytes: int
    load_seconds: float

class AdapterAbout(TypedDict):
    method: str
    rank: int
    targets: list[str]
    tensor_bytes: int

class ModelHeader(TypedDict):
    file_bytes: int
    metadata: dict[str, object]
    tensors: list[tuple[str, list[int], str, int]]

@final
class Texts:
    def __new__(cls, texts: Sequence[str]) -> Texts: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> str: ...
    def to_json(self) -> bytes: ...
    def to_merge_lines(self) -> bytes: ...
    def merges_by_score(self, made: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]: ...

@final
class Replacer:
    def __new__(
        cls, pattern: str, replacement: str, *, is_regex: bool = False, ignore_case: bool = False
    ) -> Replacer: ...
    def replace(self, text: str, max_bytes: int, max_seconds: float) -> tuple[str, int] | None: ...

@final
class PoolStats:
    @property
    def num_pages(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def active(self) -> int: ...
    @property
    def pinned(self) -> int: ...
    @property
    def retained(self) -> int: ...
    @property
    def demoted(self) -> int: ...
    @property
    def hits_tokens(self) -> int: ...
    @property
    def queried_tokens(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def evictions_by_cause(self) -> dict[str, int]: ...
    @property
    def policy_error(self) -> str | None: ...

@final
class CachedPrefix:
    @property
    def key(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def adapter_id(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def hits(self) -> int: ...

@final
class BlockPool:
    def __new__(
        cls,
        num_pages: int,
        *,
        groups: Sequence[tuple[str, int, int]] = ...,
        eviction: str | EvictionPolicy = "lru",
        prefix_hash: str = "siphash",
        block_tokens: int = 16,
    ) -> BlockPool: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def limit(self) -> int: ...
    def set_limit(self, num_pages: int) -> int: ...
    def take_freed(self) -> list[int]: ...
    def most_pages(self, num_tokens: int, step_tokens: int) -> int: ...
    def add(
        self,
        seq: int,
        prompt: Sequence[int],
        *,
        adapter_id: int = 0,
        media_hash: bytes = b"",
        tenant: str = "",
        priority: int = 0,
        count: bool = True,
        most_cached: int | None = None,
    ) -> int: ...
    def take_part(self, seq: int, tokens: Sequence[int]) -> tuple[int, list[tuple[int, int]]]: ...
    def restore(
        self,
        seq: int,
        tokens: Sequence[int],
        *,
        adapter_id: int = 0,
        media_hash: bytes = b"",
        tenant: str = "",
        priority: int = 0,
    ) -> tuple[int, list[int]]: ...
    def pages_in_use(self, seq: int) -> list[int]: ...
    def lookup(
        self, prompt: Sequence[int], *, adapter_id: int = 0, media_hash: bytes = b"", tenant: str = ""
    ) -> tuple[int, int]: ...
    def reserve(self, seq: int, num_tokens: int) -> None: ...
    def commit(self, seq: int, tokens: Sequence[int]) -> None: ...
    def tables(self, seq: int) -> list[list[int]]: ...
    def table(self, seq: int) -> list[int]: ...  # tests and benchmarks only
    def tokens(self, seq: int) -> list[int]: ...
    def num_tokens(self, seq: int) -> int: ...
    def release(self, seq: int) -> None: ...
    def fork(self, parent: int, child: int) -> list[tuple[int, int]]: ...
    def pin(
        self, name: str, tokens: Sequence[int], *, adapter_id: int = 0, media_hash: bytes = b"", tenant: str = ""
    ) -> int: ...
    def unpin(self, name: str) -> bool: ...
    def retain(
        self,
        name: str,
        tokens: Sequence[int],
        *,
        adapter_id: int = 0,
        media_hash: bytes = b"",
        tenant: str = "",
        expected_seconds: float | None = None,
    ) -> int: ...
    def forget(self, name: str) -> bool: ...
    def demote(
        self,
        prefix: str | Sequence[int],
        *,
        keep_tokens: int = 0,
        adapter_id: int = 0,
        media_hash: bytes = b"",
        tenant: str = "",
    ) -> int: ...
    def explain(
        self, prompt: Sequence[int], *, adapter_id: int = 0, media_hash: bytes = b"", tenant: str = ""
    ) -> tuple[int, int, str]: ...
    def prefixes(self, limit: int = 20, *, tenants: Sequence[str] = ...) -> list[CachedPrefix]: ...
    def clear_index(self) -> None: ...
    def stats(self) -> PoolStats: ...
    def check(self) -> None: ...  # tests and benchmarks only

@final
class SamplerState:
    def __new__(
        cls,
        *,
        temperature: float = 1.0,
        temperature_end: float = 1.0,
        temperature_tokens: int = 0,
        temperature_cosine: bool = False,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        top_n_sigma: float = 0.0,
        epsilon_cutoff: float = 0.0,
        eta_cutoff: float = 0.0,
        top_k: int = 0,
        top_k_entropy: float = 0.0,
        top_h: float = 1.0,
        typical_p: float = 1.0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        min_p_entropy: float = 0.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        mirostat: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_last_n: int = 0,
        penalty_decay: float = 1.0,
        penalty_warmup: int = 0,
        penalty_tokens: int = 0,
        penalty_end: float = 1.0,
        penalty_cosine: bool = False,
        no_repeat_ngram_size: int = 0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_penalty_last_n: int = 0,
        dry_breakers: Sequence[int] = ...,
        bad_words: Sequence[Sequence[int]] = ...,
        bad_words_penalty: float = ...,
        bad_words_tokens: int = 0,
        allowed_tokens: Sequence[int] | None = None,
        logit_bias: Sequence[tuple[int, float]] = ...,
        seed: int = 0,
        num_logprobs: int = 0,
        has_entropy: bool = False,
    ) -> SamplerState: ...
    @property
    def reads_prompt(self) -> bool: ...
    def plain_params(
        self,
    ) -> (
        tuple[float, int, float, float, float, float, float, int, int, list[tuple[int, float]], list[int] | None, bool]
        | None
    ): ...
    def seen_tokens(self) -> list[tuple[int, int]]: ...
    def distribution(self, logits: Sequence[float], step: int = 0) -> list[tuple[int, float]]: ...  # tests only
    def observe_prompt(self, tokens: Sequence[int]) -> None: ...
    def observe(self, tokens: Sequence[int]) -> None: ...

@final
class PromptScores:
    def __new__(cls, tokens: Sequence[int], num_top: int) -> PromptScores: ...
    @property
    def is_complete(self) -> bool: ...
    def __len__(self) -> int: ...
    def read(self, start: int, stop: int) -> list[tuple[float, int, list[tuple[int, float]]]]: ...

@final
class LoadProgress:
    def __new__(cls) -> LoadProgress: ...
    def expect(self, num_bytes: int) -> None: ...
    def add(self, num_bytes: int) -> None: ...
    def finish(self) -> None: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def bytes_total(self) -> int: ...

@final
class SwapHandle:
    @property
    def bytes(self) -> int: ...
    @property
    def num_pages(self) -> int: ...

@final
class LogitsRows:
    @property
    def segments(self) -> list[int]: ...
    @property
    def vocab_size(self) -> int: ...
    def read(self, segments: Sequence[int], buffer: Buffer) -> None: ...
    def write(self, segments: Sequence[int], buffer: Buffer) -> dict[int, str]: ...

@final
class EncoderModel:
    @staticmethod
    def load(
        path: str | PathLike[str],
        *,
        threads: int,
        most_tokens: int = 1024,
        isa: str | None = None,
        progress: LoadProgress | None = None,
    ) -> EncoderModel: ...
    def info(self) -> EncoderInfo: ...
    def compute(self, texts: Sequence[Sequence[int]]) -> bytes: ...
    def compute_tokens(self, texts: Sequence[Sequence[int]]) -> bytes: ...
    @property
    def most_tokens(self) -> int: ...  # tests only
    def long_text_bytes(self, num_tokens: int) -> int: ...
    def begin(self, text: Sequence[int], gives_tokens: bool) -> LongText: ...
    def advance(self, text: LongText) -> bytes | None: ...
    def close(self) -> None: ...

@final
class LongText: ...

@final
class AdapterFile:
    @staticmethod
    def open(model: CpuModel, path: str | PathLike[str], *more: str | PathLike[str]) -> AdapterFile: ...
    @property
    def is_dora(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def num_modules(self) -> int: ...
    def step_bytes(self, num_tokens: int) -> int: ...
    def load(self, model: CpuModel, adapter_id: int) -> None: ...

@final
class AdapterMerge:
    @staticmethod
    def open(model: str | PathLike[str], adapters: Sequence[str | PathLike[str]]) -> AdapterMerge: ...
    def shards(self) -> list[tuple[Path, int, list[tuple[str, int, int, int]]]]: ...
    def tensor(self, name: str) -> MergedTensor: ...

@final
class MergedTensor:
    def rows(self, first: int, count: int, threads: int) -> bytes: ...

@final
class FamilyDescription:
    def __new__(
        cls,
        config: str,
        tensor_names: Sequence[tuple[str, str]],
        layer_tables: Sequence[int | None] | None = None,
        tables: Sequence[tuple[Buffer, int]] = ...,
    ) -> FamilyDescription: ...

@final
class CpuModel:
    @staticmethod
    def load(
        path: str | PathLike[str],
        *,
        threads: int,
        kv_bytes: int,
        kv_type: str = "bf16",
        isa: str | None = None,
        swap_dir: str | PathLike[str] | None = None,
        most_positions: int | None = None,
        mtp: bool = True,
        head: str | PathLike[str] | None = None,
        family: FamilyDescription | None = None,
        progress: LoadProgress | None = None,
    ) -> CpuModel: ...
    def execute(
        self,
        pool: BlockPool,
        sequence_ids: Sequence[int],
        lengths: Sequence[int],
        tokens: Sequence[int],
        samplers: Sequence[SamplerState] = ...,
        steps: Sequence[int] = ...,
        masks: dict[int, bytes] = ...,
        *,
        num_outputs: Sequence[int] | None = None,
        scores: dict[int, PromptScores] = ...,
        process: Callable[[LogitsRows], dict[int, str]] | None = None,
        processed: AbstractSet[int] = ...,
        num_drafts: dict[int, int] = ...,
        probes: dict[int, tuple[int, int]] = ...,
        num_ahead: dict[int, int] = ...,
    ) -> tuple[
        list[int],
        dict[int, _Likelihood],
        dict[int, str],
        dict[int, list[tuple[int, _Likelihood | None]]],
        dict[int, list[_Probed]],
    ]: ...
    def set_prompt(self, sequence_id: int, prompt: Sequence[int] | None) -> None: ...
    def share_prompt(self, parent: int, child: int) -> None: ...
    def attach_drafter(self, path: str | PathLike[str] | None, progress: LoadProgress | None = None) -> None: ...
    def draft(
        self,
        pool: BlockPool,
        sequence_ids: Sequence[int],
        tokens: Sequence[int],
        num_ahead: Sequence[int],
        before: Sequence[int | None],
    ) -> tuple[list[tuple[int, float] | None], dict[int, str]]: ...
    def logits(self) -> bytes: ...  # tests and benchmarks only
    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def swap_out(self, pages: Sequence[int]) -> SwapHandle: ...
    def swap_in(self, handle: SwapHandle, pages: Sequence[int]) -> None: ...
    def read_layers(self, pages: Sequence[int], first_layer: int, num_layers: int) -> bytes: ...
    def write_layers(self, pages: Sequence[int], first_layer: int, num_layers: int, data: Buffer) -> None: ...
    def give_back(self, pages: Sequence[int]) -> None: ...
    def remove_adapter(self, adapter_id: int) -> bool: ...
    def expert_loads(self) -> list[list[int]]: ...
    def compute_seconds(self) -> float: ...  # tests and benchmarks only
    def step_bytes(self, num_tokens: int, num_outputs: int, num_positions: int) -> int: ...
    def info(self) -> CpuModelInfo: ...

@final
class ExpertsConfig:
    @property
    def num_experts(self) -> int: ...
    @property
    def num_used(self) -> int: ...
    @property
    def is_rated_by_sigmoid(self) -> bool: ...
    @property
    def is_renormalised(self) -> bool: ...
    @property
    def weight_scale(self) -> float: ...
    @property
    def weighs_inputs(self) -> bool: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def num_used_groups(self) -> int: ...
    @property
    def shared_size(self) -> int: ...
    @property
    def is_shared_gated(self) -> bool: ...
    @property
    def dense_size(self) -> int: ...

@final
class ModelConfig:
    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def num_recurrent_layers(self) -> int: ...
    @property
    def is_cpu_only(self) -> bool: ...
    @property
    def context_length(self) -> int: ...
    @property
    def norm_epsilon(self) -> float: ...
    @property
    def norm_weight_offset(self) -> float: ...
    @property
    def is_rope_interleaved(self) -> bool: ...
    @property
    def rope_frequencies(self) -> list[float]: ...
    @property
    def rope_attention_factor(self) -> float: ...
    @property
    def local_rope_frequencies(self) -> list[float]: ...
    @property
    def local_rope_attention_factor(self) -> float: ...
    @property
    def rotary_layers(self) -> list[bool]: ...
    @property
    def has_input_norms(self) -> bool: ...
    @property
    def is_qk_norm_wide(self) -> bool: ...
    @property
    def is_norm_after_rope(self) -> bool: ...
    @property
    def windows(self) -> list[int | None]: ...
    @property
    def activation(self) -> str: ...
    @property
    def swiglu_limits(self) -> tuple[float, float] | None: ...
    @property
    def has_sinks(self) -> bool: ...
    @property
    def has_attention_gates(self) -> bool: ...
    @property
    def attention_scale(self) -> float: ...
    @property
    def attention_softcap(self) -> float | None: ...
    @property
    def logit_softcap(self) -> float | None: ...
    @property
    def embedding_scale(self) -> float: ...
    @property
    def is_output_tied(self) -> bool: ...
    @property
    def experts(self) -> ExpertsConfig | None: ...
    @property
    def dense_layers(self) -> list[bool]: ...
    @property
    def query_growth(self) -> str | None: ...
    @property
    def dual_chunks(self) -> str | None: ...
    @property
    def latent(self) -> str | None: ...
    @property
    def gemma4(self) -> str | None: ...
    @property
    def recurrent(self) -> str | None: ...
    @property
    def recurrent_layers(self) -> list[bool]: ...
    @property
    def blocks(self) -> list[str]: ...
    @property
    def residual_scale(self) -> float: ...
    @property
    def logit_divisor(self) -> float: ...
    @property
    def has_mtp(self) -> bool: ...

@final
class ModelFile:
    def __new__(
        cls,
        path: str | PathLike[str],
        most_positions: int | None = None,
        family: FamilyDescription | None = None,
    ) -> ModelFile: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def quantization(self) -> str | None: ...
    def place(self, name: str) -> tuple[str, int] | None: ...
    def find(self, name: str) -> tuple[list[int], str] | None: ...
    def find_stored(self, name: str) -> tuple[list[int], str] | None: ...
    def read_floats(self, name: str, first_row: int, out: Buffer) -> None: ...
    def read_bytes(self, name: str, first_row: int, out: Buffer) -> None: ...
    def read_stored(self, name: str, first_row: int, out: Buffer) -> None: ...

@final
class TensorFile:
    def __new__(cls, path: str | PathLike[str]) -> TensorFile: ...
    @staticmethod
    def irrelevant_fields() -> list[str]: ...
    def find(self, name: str) -> tuple[list[int], str] | None: ...
    def read_floats(self, name: str, first_row: int, out: Buffer) -> None: ...
    def read_bytes(self, name: str, first_row: int, out: Buffer) -> None: ...

@final
class TorchKernels:
    def __new__(cls, library: str | PathLike[str] | None = None) -> TorchKernels: ...
    @property
    def has_threads(self) -> bool: ...
    def attend(
        self,
        q: Buffer,
        keys: Buffer,
        values: Buffer,
        tables: Buffer,
        lengths: Buffer,
        out: Buffer,
        *,
        num_threads: int,
        scale: float,
        window: int | None = None,
    ) -> None: ...
    def rms_norm(
        self,
        x: Buffer,
        weight: Buffer,
        out: Buffer,
        *,
        epsilon: float,
        num_threads: int,
        branch: Buffer | None = None,
        total: Buffer | None = None,
    ) -> None: ...
    def gated(self, gate_up: Buffer, out: Buffer, *, is_silu: bool, num_threads: int) -> None: ...
    def rotate_and_store(
        self,
        heads: tuple[Buffer, Buffer, Buffer],
        cos_sin: tuple[Buffer, Buffer],
        rows: Buffer,
        keys: Buffer,
        values: Buffer,
        out: Buffer,
        *,
        is_interleaved: bool,
        num_threads: int,
    ) -> None: ...

def sample_logits(
    logits: Buffer,
    samplers: Sequence[SamplerState],
    steps: Sequence[int],
    masks: dict[int, bytes] = ...,
    *,
    process: Callable[[LogitsRows], dict[int, str]] | None = None,
    processed: AbstractSet[int] = ...,
) -> tuple[list[int], dict[int, _Likelihood], dict[int, str]]: ...
def available_cores() -> int: ...
def cpu_features() -> CpuFeatures: ...

class ModelShape(TypedDict):
    architecture: str
    attention: str | None
    fault: str | None
    vocab_size: int
    context_length: int
    num_layers: int
    layer_kinds: list[tuple[str, int]]
    has_mtp: bool
    is_encoder_decoder: bool
    weight_bytes: int
    kv_bytes_per_token: int
    kv_groups: list[tuple[str, int, int]]
    page_bytes: int

class DrafterShape(TypedDict):
    kind: DrafterKind
    backbone_size: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_drafted: int
    num_clusters: int
    most_drafts: int | None
    weight_bytes: int
    workspace_bytes: int

def describe_drafter(
    path: str | PathLike[str],
    num_threads: int = 1,
    num_rows: int = 1,
    num_positions: int = 1,
    num_tokens: int = 1,
) -> DrafterShape | None: ...
def model_task(path: str | PathLike[str]) -> ModelTask: ...
def late_score(query: bytes, document: bytes, width: int) -> float: ...
def describe_adapter(path: str | PathLike[str]) -> AdapterAbout: ...
def describe_encoder(
    path: str | PathLike[str], *, threads: int = 1, most_tokens: int = 1024
) -> EncoderShape | None: ...
def describe_model(
    path: str | PathLike[str],
    kv_type: str = "bf16",
    *,
    mtp: bool = True,
    head: str | PathLike[str] | None = None,
    family: FamilyDescription | None = None,
) -> ModelShape: ...
def most_step_bytes(
    path: str | PathLike[str],
    num_threads: int,
    num_tokens: int,
    num_outputs: int,
    num_positions: int,
    *,
    mtp: bool = True,
    family: FamilyDescription | None = None,
) -> int: ...
def read_model_header(path: str | PathLike[str], *, arrays: bool = True, packed: bool = False) -> ModelHeader: ...
def tensor_checksums(path: str | PathLike[str]) -> list[tuple[str, int, int, int, list[tuple[str, int, int]]]]: ...
def trim_memory() -> None: ...
def dequantise(type_name: str, data: bytes) -> bytes: ...  # tests and benchmarks only
def quantise(type_name: str, values: Buffer, threads: int) -> bytes: ...
def analyse_code(
    paths: Sequence[str], threads: int
) -> list[tuple[str, float | None, list[tuple[str, int, int]], str | None]]: ...
def find_duplicates(
    paths: Sequence[str | PathLike[str]], min_lines: int
) -> list[tuple[int, list[tuple[int, int, int]]]]: ...
def count_names(paths: Sequence[str | PathLike[str]], names: Sequence[str]) -> list[int]: ...
def nearest_rows(
    path: str | PathLike[str], query: Sequence[float], count: int, threads: int
) -> list[tuple[int, float]]: ...

@final
class TokenIndex:
    def __new__(cls, least: int, most_tokens: int) -> TokenIndex: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def end_text(self) -> None: ...
    def propose(self, text: Sequence[int], most: int) -> tuple[list[int], list[float], int]: ...
    @property
    def num_bytes(self) -> int: ...  # tests only
    @property
    def num_tokens(self) -> int: ...  # tests only
