"""The cores and GPUs of this machine, and what each copy of an engine gets of them, of its threads and its memory.

`read_layout` and `visible_gpus` read the system's own tables; all else is functions of what they found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.memory.system import total_for

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""The variable that names the GPUs which a process may use; the driver reads it when it is first asked."""


@dataclass(frozen=True, slots=True)
class Core:
    """A processor that this process may use: its number, its NUMA node, and the physical core it is a thread of."""

    number: int
    node: int = 0
    physical: int = 0


def read_layout(
    nodes: Path = Path("/sys/devices/system/node"), cpus: Path = Path("/sys/devices/system/cpu")
) -> list[Core]:
    """Return the processors of this process's affinity; none where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    node_of = {cpu: int(folder.name[4:]) for folder in nodes.glob("node[0-9]*") for cpu in _cpus(folder / "cpulist")}
    numbers = sorted(os.sched_getaffinity(0))
    return [
        Core(cpu, node_of.get(cpu, 0), _first(cpus / f"cpu{cpu}/topology/thread_siblings_list", cpu)) for cpu in numbers
    ]


def _cpus(path: Path) -> list[int]:
    """Return the numbers of a list as the kernel writes it: `0-3,8`."""
    try:
        parts = path.read_text(encoding="ascii").strip().split(",")
        ranges = [[int(end) for end in part.split("-")] for part in parts if part]
    except (OSError, ValueError):
        return []
    return [cpu for numbers in ranges for cpu in range(numbers[0], numbers[-1] + 1)]


def _first(path: Path, otherwise: int) -> int:
    return min(_cpus(path), default=otherwise)


def auto_copies(layout: Sequence[Core]) -> int:
    """Return how many copies `engine.data_parallel = "auto"` means: one for each NUMA node."""
    return max(1, len({core.node for core in layout}))


def divide_cores(layout: Sequence[Core], num_copies: int) -> list[tuple[int, ...]]:
    """Return each copy's processors: near ones together, as many for each, give or take one.

    Where there are fewer than copies, none is told which: they share what there is.
    """
    ordered = [core.number for core in sorted(layout, key=lambda core: (core.node, core.physical, core.number))]
    if num_copies < 2 or len(ordered) < num_copies:
        return [()] * num_copies
    ends = [len(ordered) * index // num_copies for index in range(num_copies + 1)]
    return [tuple(ordered[start:end]) for start, end in pairwise(ends)]


def visible_gpus(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that this process may use, as `VISIBLE_GPUS` names them; none where the system does not say."""
    named = environ.get(VISIBLE_GPUS)
    if named is None:
        return [str(number) for number in range(len([*devices.glob("nvidia[0-9]*")]))]
    names = [name.strip() for name in named.split(",")]
    return names[: next((at for at, name in enumerate(names) if name in {"", "-1"}), None)]  # as CUDA reads it


def divide_gpus(gpus: Sequence[str], num_copies: int, num_ranks: int) -> list[tuple[str, ...]]:
    """Return each copy's GPUs, one for each of its ranks. Where there are too few, none is told which."""
    if num_copies < 2 or len(gpus) < num_copies * num_ranks:
        return [()] * num_copies
    return [tuple(gpus[copy * num_ranks : (copy + 1) * num_ranks]) for copy in range(num_copies)]


def copy_settings(settings: Settings, num_copies: int, num_cores: int, *, has_own_gpus: bool = False) -> Settings:
    """Return the settings of each copy's process: its share of the threads and of the memory.

    With GPUs of its own it is to know of no other copy.
    """
    if num_copies < 2:
        return settings
    engine = msgspec.structs.replace(
        settings.engine,
        data_parallel=1 if has_own_gpus else num_copies,
        threads=max(1, (settings.engine.threads or num_cores) // num_copies),
        memory=total_for(settings.engine.memory) // num_copies,
    )
    return msgspec.structs.replace(settings, engine=engine)
