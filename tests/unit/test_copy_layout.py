"""Cores, threads and memory divided among copies of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.assembly import make_host
from pyagent.core.config import load_settings
from pyagent.infrastructure.engine.plugin import options_of
from pyagent.infrastructure.engine.subprocess.layout import (
    Core,
    auto_copies,
    copy_settings,
    divide_cores,
    divide_gpus,
    read_layout,
    visible_gpus,
)

TWO_SOCKETS = [Core(cpu, node=cpu % 16 // 8, physical=cpu % 16) for cpu in range(32)]
"""As servers number them: first one thread of each core of both sockets, then the other threads."""


@pytest.mark.parametrize("num_copies", [2, 4, 8])
def test_copies_stay_within_a_socket_and_siblings_together(num_copies: int) -> None:
    """No copy computes on both sockets, and no physical core is shared by two copies."""
    by_number = {core.number: core for core in TWO_SOCKETS}
    shares = [[by_number[number] for number in share] for share in divide_cores(TWO_SOCKETS, num_copies)]
    assert all(len({core.node for core in share}) == 1 for share in shares)
    owners = [{core.physical for core in share} for share in shares]
    assert sum(map(len, owners)) == 16


@given(
    st.lists(st.builds(Core, st.integers(0, 200), st.integers(0, 3)), unique_by=lambda core: core.number),
    st.integers(2, 9),
)
def test_every_core_is_of_one_copy(layout: list[Core], num_copies: int) -> None:
    """All cores are given, each once, as many to each copy give or take one; too few are shared by all."""
    shares = divide_cores(layout, num_copies)
    assert len(shares) == num_copies
    if len(layout) < num_copies:
        assert not any(shares)
    else:
        assert sorted(number for share in shares for number in share) == sorted(core.number for core in layout)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_engine_is_held_to_no_core() -> None:
    """A process that is not one of several computes wherever it may, and auto on one socket is one."""
    assert divide_cores(TWO_SOCKETS, 1) == [()]
    assert auto_copies([Core(0), Core(1)]) == auto_copies([]) == 1
    assert auto_copies(TWO_SOCKETS) == 2


def test_layout_is_read_from_the_systems_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes and siblings as Linux writes them, of the cores in the affinity alone; without tables all are alike."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 5}, raising=False)
    nodes, cpus = tmp_path / "node", tmp_path / "cpu"
    for number, text in (("node0", "0-1,4"), ("node1", "2-3,5-7")):
        (nodes / number).mkdir(parents=True)
        (nodes / number / "cpulist").write_text(f"{text}\n")
    for cpu, text in ((0, "0,4"), (4, "0,4"), (1, "1,5"), (5, "1,5")):
        (cpus / f"cpu{cpu}/topology").mkdir(parents=True)
        (cpus / f"cpu{cpu}/topology/thread_siblings_list").write_text(text)
    assert read_layout(nodes, cpus) == [Core(0, 0, 0), Core(1, 0, 1), Core(4, 0, 0), Core(5, 1, 1)]
    nowhere = tmp_path / "nowhere"
    assert read_layout(nowhere, nowhere) == [Core(cpu, 0, cpu) for cpu in (0, 1, 4, 5)]


def test_copies_share_threads_and_memory() -> None:
    """Threads and memory of the settings are those of all copies together; each copy has one thread at least."""
    settings = load_settings(overrides={"engine.threads": 7, "engine.memory": "6GB"}).settings
    assert copy_settings(settings, 1, 2) == settings
    for num_copies, threads in ((2, 3), (7, 1), (9, 1)):
        engine = copy_settings(settings, num_copies, 2).engine
        assert engine.threads == threads
        assert engine.memory == 6_000_000_000 // num_copies
    free = copy_settings(load_settings().settings, 2, 8).engine
    assert free.threads == 4
    assert free.memory is not None


def test_gpus_are_those_of_the_variable_or_the_drivers_files(tmp_path: Path) -> None:
    """`CUDA_VISIBLE_DEVICES` is read as CUDA reads it, up to what is none; without it each device file is one."""
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]  # CUDA counts those that a container was given from 0
    for value, gpus in {"2, 0": ["2", "0"], "GPU-1f,-1,3": ["GPU-1f"], "": [], "-1": []}.items():
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) == gpus


def test_gpus_are_divided_or_shared_by_all() -> None:
    """Each rank of each copy has one, in their order; where they are too few no copy is told which."""
    assert divide_gpus(["4", "5", "6", "7", "8"], 2, 2) == [("4", "5"), ("6", "7")]
    assert divide_gpus(["4", "5", "6"], 2, 2) == divide_gpus([], 2, 1) == [(), ()]
    assert divide_gpus(["4", "5"], 1, 2) == [()]


@pytest.mark.parametrize(("visible", "num_sharing"), [("0,1", 1), ("0", 2)])
def test_runner_is_told_who_shares_its_gpus(visible: str, num_sharing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that have GPUs of their own know of no other; others are told how many see the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settings = load_settings(overrides={"engine.data_parallel": 2}).settings
    assert options_of(settings, make_host(settings)).runner.num_sharing == num_sharing
    told = copy_settings(settings, 2, 8, has_own_gpus=num_sharing == 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible[0])
    assert options_of(told, make_host(told)).runner.num_sharing == num_sharing
