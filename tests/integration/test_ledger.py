"""The byte ledger: nothing beyond the total, nothing given back twice, the longest unused asked first."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import CapacityError
from pyagent.infrastructure.engine.memory.ledger import Ledger, Reservation
from pyagent.infrastructure.engine.memory.process import resident_bytes
from pyagent.infrastructure.engine.memory.system import AUTO_SHARE, available_memory, total_for

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["reserve", "resize", "release", "thrice"]), st.integers(0, 120), st.integers(0, 9)),
    max_size=60,
)


@given(ACTIONS)
def test_sum_of_reservations_never_exceeds_the_total(actions: list[tuple[str, int, int]]) -> None:
    """Whatever is reserved, resized and released, held and free bytes add up to the total, as in a plain dictionary."""
    ledger = Ledger(300)
    held: list[tuple[Reservation, int]] = []
    for action, size, which in actions:
        room = 300 - sum(size for _, size in held)
        if action == "reserve":
            if size > room:
                with pytest.raises(CapacityError):
                    ledger.reserve(f"a{which}", size)
            else:
                held.append((ledger.reserve(f"a{which}", size), size))
        elif held:
            reservation, before = held[which % len(held)]
            if action == "resize":
                if size - before > room:
                    with pytest.raises(CapacityError):
                        reservation.resize(size)
                else:
                    reservation.resize(size)
                    held[which % len(held)] = (reservation, size)
            else:
                held.pop(which % len(held))
                for _ in range(1 if action == "release" else 3):
                    reservation.release()
        assert ledger.free_bytes == 300 - sum(size for _, size in held)
        assert sum(ledger.accounts().values()) == 300 - ledger.free_bytes


def test_longest_unused_is_asked_first_and_no_more_than_needed() -> None:
    """Holders are asked in the order of their last use, until the bytes are there; the asker's own account is not."""
    ledger = Ledger(100)
    asked: list[str] = []
    holders: dict[str, Reservation] = {}

    def hold(name: str, size: int) -> None:
        def give_back(num_bytes: int) -> None:
            asked.append(f"{name} {num_bytes}")
            holders[name].resize(max(0, holders[name].num_bytes - num_bytes))

        holders[name] = ledger.reserve(name, size, give_back)

    hold("old", 20)
    hold("young", 60)
    hold("asker", 20)
    holders["old"].touch()
    holders["young"].touch()
    holders["old"].touch()
    ledger.reserve("asker", 30)
    assert asked == ["young 30"]
    ledger.reserve("asker", 35)
    assert asked == ["young 30", "young 35", "old 5"]
    assert ledger.accounts() == {"asker": 85, "old": 15}


def test_refusal_names_who_holds_what() -> None:
    """Who is refused reads what is missing, who holds the rest, and when to try again."""
    ledger = Ledger(10_000_000)
    ledger.reserve("weights:a", 7_000_000)
    ledger.reserve("kv:a", 2_000_000)
    with pytest.raises(CapacityError, match=r"kv:b needs 4\.0 MB .* of the engine's 10\.0 MB only 1\.0 MB") as caught:
        ledger.reserve("kv:b", 4_000_000)
    assert "held by: weights:a 7.0 MB, kv:a 2.0 MB" in str(caught.value)
    assert caught.value.retry_after_seconds
    held = ledger.reserve("kv:b", 0)
    assert not held.try_resize(4_000_000)
    assert held.try_resize(1_000_000)


def test_holder_that_fails_to_give_back_is_passed_by() -> None:
    """A holder whose answer is an exception keeps its memory; the next one is asked."""
    ledger = Ledger(10)

    def fail(num_bytes: int) -> None:
        raise OSError(num_bytes)

    ledger.reserve("broken", 5, fail)
    good = ledger.reserve("good", 5, lambda _: good.release())
    ledger.reserve("new", 5)
    assert ledger.accounts() == {"broken": 5, "new": 5}


def test_threads_share_the_ledger_without_losing_a_byte() -> None:
    """Eight threads that reserve, grow and release at once leave every byte free."""
    ledger = Ledger(1_000)

    def work(number: int) -> None:
        for turn in range(300):
            held = ledger.reserve(f"t{number}", 0)
            if held.try_resize(turn % 200):
                with contextlib.suppress(CapacityError):
                    held.resize(turn % 300)
            held.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.accounts(), ledger.free_bytes) == ({}, 1_000)


class SlowTotal(int):
    """A total whose use takes a moment, in which other threads go on."""

    def __sub__(self, other: int) -> int:
        left = int(self) - other
        time.sleep(0.005)
        return left


def test_two_that_resize_at_once_cannot_both_have_the_last_bytes() -> None:
    """Between the look at what is free and the taking of it nobody else takes it: one of eight gets the bytes."""
    for _ in range(5):
        ledger = Ledger(SlowTotal(100))
        held = [ledger.reserve(f"t{number}", 0) for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            taken = list(threads.map(lambda reservation: reservation.try_resize(60), held))
        assert taken.count(True) == 1
        assert sum(ledger.accounts().values()) == 60


def test_automatic_total_is_a_share_of_what_the_container_has(tmp_path: Path) -> None:
    """Memory is the least of the machine's and of each cgroup's limit, less what is used and cannot be dropped."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (proc / "self/cgroup").write_text("0::/user/job\n")
    (cgroups / "user/job").mkdir(parents=True)
    assert available_memory(proc, cgroups) == 8000 * 1024
    (cgroups / "user/memory.max").write_text("5000000\n")
    (cgroups / "user/memory.current").write_text("2000000\n")
    (cgroups / "user/memory.stat").write_text("anon 1\ninactive_file 500000\n")
    (cgroups / "user/job/memory.max").write_text("max\n")
    assert available_memory(proc, cgroups) == 3_500_000
    (cgroups / "user/memory.current").write_text("6000000\n")
    assert available_memory(proc, cgroups) == 0
    assert total_for(123) == 123
    here = available_memory()
    assert here
    assert total_for(None) == pytest.approx(resident_bytes() + AUTO_SHARE * here, rel=0.2)
