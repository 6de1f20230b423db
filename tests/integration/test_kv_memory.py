"""KV memory of the CPU runner: pages by groups of layers, copied, swapped out and given back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from support.kv_sequences import random_tokens
from support.tiny_model import TINY_GEMMA_WINDOW

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits

NO_PAGE = 0xFFFFFFFF
Groups = list[tuple[str, int, int]]


def load(
    path: Path, *, kv_bytes: int = 32 << 20, kv_type: str = "bf16", swap_dir: Path | None = None
) -> _rust.CpuModel:
    return _rust.CpuModel.load(path, threads=1, kv_bytes=kv_bytes, kv_type=kv_type, swap_dir=swap_dir)


def pool_of(model: _rust.CpuModel, groups: Groups | None = None) -> _rust.BlockPool:
    return _rust.BlockPool(model.info()["num_pages"], groups=groups or model.info()["kv_groups"])


def compute(model: _rust.CpuModel, pool: _rust.BlockPool, sequence: int, tokens: list[int]) -> bytes:
    """The last token's logits, after `tokens` more of the sequence."""
    pool.reserve(sequence, pool.num_tokens(sequence) + len(tokens))
    model.execute(pool, [sequence], [len(tokens)], tokens, num_outputs=[1])
    return model.logits()


def pages_of_full_attention(model: _rust.CpuModel, num_tokens: int) -> int:
    """Pages that a sequence would take if every layer kept all tokens."""
    return -(-num_tokens // 16) * sum(pages for _, _, pages in model.info()["kv_groups"])


def test_groups_are_those_of_the_layers(tiny_gemma_path: Path, tiny_model_path: Path) -> None:
    """Layers that see the same tokens are a group; a page holds as many layers as divide every group."""
    gemma, llama = load(tiny_gemma_path).info(), load(tiny_model_path).info()
    assert gemma["kv_groups"] == [("window", TINY_GEMMA_WINDOW, 5), ("full", 0, 1)]
    assert llama["kv_groups"] == [("full", 0, 1)]
    assert gemma["page_bytes"] == llama["page_bytes"] == 2 * 16 * gemma["kv_bytes_per_token"] // 12
    assert gemma["num_pages"] == (32 << 20) // gemma["page_bytes"]


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "int8"])
def test_logits_without_the_pages_that_slid_out_are_the_same(tiny_gemma_path: Path, kv_type: str) -> None:
    """A pool that keeps only what a window sees gives, in any chunks, the bits of one that keeps everything."""
    model = load(tiny_gemma_path, kv_type=kv_type)
    keeping = pool_of(model, [("window", 1 << 20, 5), ("full", 0, 1)])
    draw = random.Random(5)
    for seed in range(4):
        tokens = random_tokens(seed, draw.randrange(2, 400))
        keeping.add(seed, tokens)
        expected = compute(model, keeping, seed, tokens)
        pool = pool_of(model)
        pool.add(1, tokens)
        start = 0
        while start < len(tokens):
            chunk = tokens[start : start + draw.choice([1, 7, 16, 60])]
            start += len(chunk)
            logits = compute(model, pool, 1, chunk)
        assert logits == expected
        pool.check()


def test_a_prefix_is_found_again_when_its_window_is_still_there(tiny_gemma_path: Path) -> None:
    """A second turn starts from the end of the first, though the first turn's early blocks have slid out."""
    model = load(tiny_gemma_path)
    tokens = random_tokens(1, 300)
    keeping = pool_of(model, [("window", 1 << 20, 5), ("full", 0, 1)])
    keeping.add(1, tokens)
    expected = compute(model, keeping, 1, tokens)
    pool = pool_of(model)
    pool.add(1, tokens[:200])
    for start in range(0, 200, 50):
        compute(model, pool, 1, tokens[start : start + 50])
    assert pool.tables(1)[0][0] == NO_PAGE
    pool.release(1)
    num_cached = pool.add(2, tokens)
    assert num_cached == 192
    assert compute(model, pool, 2, tokens[num_cached:]) == expected


def test_sliding_layers_hold_few_pages(tiny_gemma_path: Path) -> None:
    """4,000 tokens hold at most what most_pages says, a quarter of what full attention would."""
    model = load(tiny_gemma_path)
    pool = pool_of(model)
    tokens = random_tokens(2, 4000)
    pool.add(1, tokens)
    for start in range(0, 4000, 100):
        compute(model, pool, 1, tokens[start : start + 100])
        assert pool.stats().active <= pool.most_pages(start + 100, 100)
    assert pool.stats().active < pages_of_full_attention(model, 4000) / 4


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "int8"])
def test_swapped_and_forked_sequences_go_on_with_the_same_bits(
    tiny_gemma_path: Path, tmp_path: Path, kv_type: str
) -> None:
    """A sequence swapped out, its memory used by others and given back, then swapped in, goes on as if nothing was."""
    model = load(tiny_gemma_path, kv_type=kv_type, swap_dir=tmp_path)
    tokens, more = random_tokens(4, 150), random_tokens(5, 30)
    pool = pool_of(model)
    pool.add(1, tokens)
    compute(model, pool, 1, tokens)
    model.copy_pages(pool.fork(1, 2))
    expected = compute(model, pool, 2, more)
    handle = model.swap_out(pool.pages_in_use(1))
    assert handle.bytes == handle.num_pages * model.info()["page_bytes"] > 0
    pool.release(1)
    pool.release(2)
    pool.clear_index()
    pool.set_limit(0)
    model.give_back(pool.take_freed())
    pool.set_limit(model.info()["num_pages"])
    other = random_tokens(6, 400)
    pool.add(3, other)
    compute(model, pool, 3, other)
    num_cached, places = pool.restore(1, tokens)
    model.swap_in(handle, places)
    pool.commit(1, tokens[num_cached:])
    assert compute(model, pool, 1, more) == expected
    assert list(tmp_path.iterdir()) == []


def test_pages_that_cannot_be_moved_are_refused(tiny_model_path: Path, tmp_path: Path) -> None:
    """Pages that do not exist, a model without a folder, a folder that is gone: each is an error that says so."""
    model = load(tiny_model_path, kv_bytes=1 << 20, swap_dir=tmp_path / "gone")
    num_pages = model.info()["num_pages"]
    for refused in (
        lambda: model.copy_pages([(0, num_pages)]),
        lambda: model.give_back([num_pages]),
        lambda: model.swap_out([NO_PAGE]),
    ):
        with pytest.raises(ValueError, match="does not exist"):
            refused()
    with pytest.raises(OSError, match=r"cannot be written to a file in .*gone"):
        model.swap_out([0])
    with pytest.raises(ValueError, match="without swap_dir"):
        load(tiny_model_path).swap_out([0])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("num_pages", [40, 64, 97, 128])
def test_context_is_what_windows_leave_room_for(tiny_gemma_path: Path, num_pages: int) -> None:
    """Memory for a seventh of a context, were every layer to see it all, is memory for a long one with windows; an
    answer can fill it to its last position."""

    async def main() -> None:
        kv_bytes = num_pages * load(tiny_gemma_path).info()["page_bytes"]
        chosen = EngineOptions(RunnerOptions(threads=1, kv_bytes=kv_bytes), SchedulerLimits(max_num_batched_tokens=64))
        backend = NativeBackend.of("tiny", lambda: tiny_gemma_path, chosen)
        model = await backend.load()
        try:
            room = model.context_length
            assert room > (num_pages - 40) * 16
            sampling = SamplingParams(temperature=0, ignore_eos=True)
            text = "the user is at ease and " * (room // 40)
            answer = await collect(backend.chat(ChatRequest(messages=[Message("user", text)], sampling=sampling)))
            assert answer.usage.prompt_tokens + answer.usage.completion_tokens == room
        finally:
            await backend.close()

    asyncio.run(main())


@pytest.mark.slow
def test_gemma_takes_far_less_memory_than_full_attention(gemma3_path: Path) -> None:
    """Gemma 3 270M reads 8,192 tokens in a third of full attention's pages; half of its bytes are not resident."""
    model = load(gemma3_path, kv_bytes=256 << 20)
    pool = pool_of(model)
    pool.set_limit(pool.most_pages(8192, 512))
    tokens = random_tokens(3, 8192)
    pool.add(1, tokens)
    compute(model, pool, 1, tokens[:512])  # the buffers of a step are there from now on
    before = resident_bytes()
    for start in range(512, 8192, 512):
        compute(model, pool, 1, tokens[start : start + 512])
    page_bytes, full = model.info()["page_bytes"], pages_of_full_attention(model, 8192)
    grown, full_bytes = resident_bytes() - before, (full - full // 16) * page_bytes
    print(f"{pool.stats().active} pages in use of {full}, {grown >> 20} MiB more resident of {full_bytes >> 20}")
    assert pool.stats().active < full / 3
    assert grown < full_bytes / 2  # of which rotary tables take an eighth of full_bytes
