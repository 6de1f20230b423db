"""Where models are computed and in which data types: the GPU that torch sees, else torch's CPU device."""

from __future__ import annotations

import traceback
from typing import NamedTuple

import torch

from pyagent.core.errors import ConfigError
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.runners.torch.quantised.trial import choose_products

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
KV_DTYPES = {**DTYPES, "fp8": torch.float8_e4m3fn}


class Target(NamedTuple):
    """A device, the data type of weights and products on it, and that of keys and values.

    `keeps_quantised` is whether weights that a file has quantised stay so, by the trial of their products: what is said
    of a model counts on it. Of a GPU's memory the engine may take `memory_share`, as far as other programs leave it.
    `is_batch_invariant` is whether a row's bits may not depend on the rows beside it. With a `compile_folder` stages
    are compiled.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    keeps_quantised: bool = False
    memory_share: float = 0.9
    is_batch_invariant: bool = False
    compile_folder: str | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether the device has memory of its own."""
        return self.device.type == "cuda"

    @property
    def usable_bytes(self) -> int:
        """Bytes of the GPU's memory that may be taken now."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device)
        return max(0, free_bytes - int((1 - self.memory_share) * total_bytes))

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the GPU's memory that this process may have: what it has, and what may be taken."""
        return torch.cuda.memory_reserved(self.device) + self.usable_bytes

    @property
    def share_bytes(self) -> int:
        """Bytes of the GPU's memory that an engine may have while no other program has any."""
        return int(self.memory_share * torch.cuda.mem_get_info(self.device)[1])


def target_of(options: RunnerOptions, rank: int = 0, *, sees_one: bool = False) -> Target:
    """Return what the options ask for here, for a rank's device. Raises `ConfigError` for what this runner lacks.

    A process that `sees_one` device has been given it.
    """
    if options.isa is not None:
        text = f"engine.isa is {options.isa}, which the torch runner cannot follow: torch chooses; set it to auto"
        raise ConfigError(text, key="engine.isa")
    if options.kv_dtype not in {"auto", *KV_DTYPES}:
        text = f"engine.kv_dtype is {options.kv_dtype}, which the torch runner lacks; set it to {', '.join(KV_DTYPES)}"
        raise ConfigError(text, key="engine.kv_dtype")
    is_gpu = torch.cuda.is_available()
    if is_gpu and not sees_one:
        check_gpus(options, torch.cuda.device_count())
    device = torch.device("cuda", rank) if is_gpu else torch.device("cpu")
    if options.batch_invariant:
        _check_invariant(options)
    keeps_quantised = options.quantization == "keep" or (options.quantization == "auto" and is_gpu)
    dtype = _dtype_of(options, is_gpu=is_gpu)
    kv_dtype = KV_DTYPES.get(options.kv_dtype, dtype)
    is_invariant = options.batch_invariant
    keeps_quantised = keeps_quantised and not is_invariant and choose_products(device, dtype) is not None
    share, folder = options.gpu_memory_utilization, options.compile_folder
    return Target(device, dtype, kv_dtype, keeps_quantised, share, is_invariant, folder)


def _check_invariant(options: RunnerOptions) -> None:
    """Raise `ConfigError` for what adds up in an order that depends on the batch."""
    if options.tensor_parallel_size > 1:
        text = f"engine.tensor_parallel_size is {options.tensor_parallel_size}, whose ranks add up in any order"
        raise ConfigError(f"{text}; set 1, or engine.batch_invariant to false", key="engine.tensor_parallel_size")
    if options.quantization == "keep":
        text = "engine.quantization is keep, whose products depend on the number of rows"
        raise ConfigError(f"{text}; set auto, or engine.batch_invariant to false", key="engine.quantization")
    if options.compile_folder is not None:
        text = "engine.compile is on, whose code computes other bits for other numbers of rows"
        raise ConfigError(f"{text}; set off, or engine.batch_invariant to false", key="engine.compile")


def check_gpus(options: RunnerOptions, num_gpus: int) -> None:
    """Raise `ConfigError` where each rank of each copy of the engine cannot have one of so many GPUs to itself."""
    sizes = "engine.tensor_parallel_size * engine.pipeline_parallel_size"
    given = options.rank_executor is not None and options.rank_executor.gives_devices
    needed = options.num_sharing * (1 if given else options.num_ranks)
    if options.num_sharing > 1:
        text = f"engine.data_parallel is {options.num_sharing} and {sizes} {options.num_ranks}: {needed} GPUs"
        advice = "take fewer copies" if needed > num_gpus else "tell them apart by naming them in CUDA_VISIBLE_DEVICES"
        raise ConfigError(f"{text}, and torch sees {num_gpus}; {advice}", key="engine.data_parallel")
    if needed > num_gpus:
        text = f"{sizes} is {needed}, a GPU for each, but torch sees {num_gpus}; take smaller sizes"
        raise ConfigError(text, key="engine.tensor_parallel_size")


def _dtype_of(options: RunnerOptions, *, is_gpu: bool) -> torch.dtype:
    if options.dtype != "auto":
        return DTYPES[options.dtype]
    if not is_gpu:
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def drop_variables(error: BaseException | None) -> None:
    """Let go of what the functions had that an error and its causes came through: tensors, all weights maybe."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def no_gpu_reason() -> str | None:
    """Return why torch can use no GPU here; None where it can."""
    if torch.cuda.is_available():
        return None
    build = "has no CUDA in it" if torch.version.cuda is None and torch.version.hip is None else "sees no GPU"
    return f"torch {torch.__version__} {build}"
