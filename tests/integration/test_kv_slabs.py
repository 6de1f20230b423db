"""KV memory by slabs: grown while the ledger has room, given back when others need it, never a page in use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_model import write_tiny_model

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory import slabs
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.memory.slabs import KvSlabs
from pyagent.infrastructure.engine.models import memory_estimate
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits

PAGE = 1000
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "reserve", "commit", "release", "give back", "others"]), st.integers(0, 300)),
    max_size=80,
)


class Checked:
    """A pool with slabs, and a record of what was given back that somebody held: nothing, ever."""

    def __init__(self, num_pages: int, ledger: Ledger) -> None:
        self.pool = _rust.BlockPool(num_pages)
        self.held: set[int] = set()
        self.faults: list[int] = []
        self.reservation = ledger.reserve("kv", 4 * PAGE)
        self.slabs = KvSlabs(self.pool, PAGE, self.note, self.reservation)

    def note(self, pages: Sequence[int]) -> None:
        tables = {page for seq in list(self.held) for page in self.pool.table(seq)}
        self.faults += tables & set(pages)

    def reserve(self, seq: int, num_tokens: int) -> bool:
        return self.slabs.take(num_tokens // 16 + 1, lambda: self.pool.reserve(seq, num_tokens))

    def check(self) -> None:
        stats = self.pool.stats()
        self.pool.check()
        assert not self.faults
        assert stats.limit * PAGE == self.reservation.num_bytes
        assert stats.active + stats.cached <= stats.limit


@settings(max_examples=60)
@given(ACTIONS)
def test_limit_follows_the_reservation_whatever_happens(actions: list[tuple[str, int]]) -> None:
    """Through any mix of growing, releasing and giving back, pages in use stay within what the ledger holds."""
    slab_bytes, slabs.SLAB_BYTES = slabs.SLAB_BYTES, 4 * PAGE
    try:
        ledger = Ledger(40 * PAGE)
        kv = Checked(64, ledger)
        others = ledger.reserve("others", 0)
        for number, (action, size) in enumerate(actions):
            seq = min(kv.held, default=0)
            if action == "add":
                kv.pool.add(number, list(range(size % 50 + 1)))
                kv.held.add(number)
            elif action == "others":
                others.try_resize(size % 30 * PAGE)
            elif action == "give back":
                kv.slabs.give_back(None if size > 200 else size * PAGE // 4)
            elif not kv.held:
                continue
            elif action == "reserve":
                before = kv.pool.stats()
                if not kv.reserve(seq, kv.pool.num_tokens(seq) + size):
                    after = kv.pool.stats()
                    assert after.active == before.active
                    assert others.num_bytes + 40 * PAGE >= kv.reservation.num_bytes
            elif action == "commit" and kv.reserve(seq, kv.pool.num_tokens(seq) + size % 40 + 1):
                kv.pool.commit(seq, list(range(1000, 1001 + size % 40)))
            elif action == "release":
                kv.held.discard(seq)
                kv.pool.release(seq)
            kv.check()
    finally:
        slabs.SLAB_BYTES = slab_bytes


def test_memory_is_given_back_beside_a_busy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread takes and releases pages, another gives back all it can: no page in use is ever given back."""
    monkeypatch.setattr(slabs, "SLAB_BYTES", 4 * PAGE)
    kv = Checked(256, Ledger(200 * PAGE))
    is_over = threading.Event()

    def work() -> None:
        for number in range(2_000):
            with kv.slabs._lock:
                kv.pool.add(number, [number, *range(40)])
                kv.held.add(number)
            kv.reserve(number, 200)
            kv.pool.commit(number, list(range(100)))
            with kv.slabs._lock:
                kv.held.discard(number)
                kv.pool.release(number)
        is_over.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not is_over.is_set():
        kv.slabs.give_back()
    thread.join()
    kv.check()
    kv.slabs.give_back()
    assert kv.reservation.num_bytes == 0


def ask(model: str, text: str, **sampling: object) -> ChatRequest:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 300, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return ChatRequest(model=model, messages=[Message("user", text)], sampling=params)


def test_cached_kv_makes_room_for_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model grows its KV while there is room; when another needs it, what is cached goes, and texts are the same."""
    monkeypatch.setattr(slabs, "SLAB_BYTES", 1 << 16)
    monkeypatch.setattr(memory_estimate, "SLAB_BYTES", 1 << 16)
    for seed, name in enumerate("ab"):
        write_tiny_model(tmp_path / f"{name}.gguf", seed)

    async def work() -> None:
        limits = SchedulerLimits(max_num_seqs=24, max_num_batched_tokens=64)
        options = EngineOptions(runner=RunnerOptions(threads=1), limits=limits)
        ledger = Ledger(3_500_000)
        pool = ModelPool(lambda name: tmp_path / f"{name}.gguf", options, ledger)
        backend = NativeBackend(["a", "b"], LocalEngine(pool), look=lambda _: "")
        first = await collect(backend.chat(ask("a", "0")))
        small = ledger.accounts()["kv:a"]
        texts = await asyncio.gather(*(collect(backend.chat(ask("a", str(number)))) for number in range(12)))
        grown = ledger.accounts()["kv:a"]
        assert grown > 2 * small
        assert texts[0].text == first.text
        async with pool.using("a") as model:
            stats = model.runner.pool.stats()
            assert stats.limit * model.runner.info.page_bytes == grown
            both = await asyncio.gather(
                *(collect(backend.chat(ask("b", str(number)))) for number in range(12)),
                *(collect(backend.chat(ask("a", str(number)))) for number in range(2)),
            )
            assert [answer.text for answer in both[12:]] == [answer.text for answer in texts[:2]]
            model.runner.pool.check()
        assert ledger.accounts()["kv:b"] > small
        assert sum(ledger.accounts().values()) <= ledger.total_bytes
        await backend.close()
        assert ledger.accounts() == {}

    asyncio.run(work())
