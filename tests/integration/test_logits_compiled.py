"""A compiled logits processor in the engine: it has the floats' address, and works without the interpreter lock."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.native import options, run, running
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.logits_processors import BroughtLogitsProcessor
from pyagent.infrastructure.engine.logits.processors import LogitsOptions

from .test_logits_processors import asked

SOURCE = """
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Says that it is there, waits until Python has seen that, and favours a token then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn favour(logits: *mut f32, len: usize, token: usize, flags: *const [AtomicU8; 2]) {
    let (logits, flags) = unsafe { (std::slice::from_raw_parts_mut(logits, len), &*flags) };
    flags[0].store(1, SeqCst);
    let start = Instant::now();
    while flags[1].load(SeqCst) == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    if flags[1].load(SeqCst) == 1 {
        logits[token] = 1000.0;
    }
}
"""


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no rustc")
def test_compiled_processor_works_without_the_interpreter_lock(tiny_model_path: Path, tmp_path: Path) -> None:
    """While Rust is at a row, Python goes on: Rust waits for what Python does, and what it writes is sampled."""
    source, library = tmp_path / "favour.rs", tmp_path / "favour.so"
    source.write_text(SOURCE)
    build = ["rustc", "-O", "--edition", "2024", "--crate-type", "cdylib", "-o", str(library), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    favour = ctypes.CDLL(str(library)).favour
    favour.argtypes, favour.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p], None
    flags = (ctypes.c_uint8 * 2)()

    def make(args: dict[str, Any], vocabulary: object) -> object:
        def process(prompt: Sequence[int], output: Sequence[int], logits: memoryview) -> None:
            address = ctypes.addressof((ctypes.c_float * len(logits)).from_buffer(logits))
            favour(address, len(logits), 70, ctypes.addressof(flags))

        return process

    factory: Any = SimpleNamespace(name="favour", arguments={}, is_argmax_invariant=False, make=make)
    brought = {"favour": BroughtLogitsProcessor.of(factory, "tests")}
    chosen = dataclasses.replace(options(), logits=LogitsOptions(brought, limit_seconds=60))

    async def work() -> None:
        async with running(tiny_model_path, chosen) as backend:
            answer = collect(backend.chat(asked("hello", "favour", max_tokens=3, top_logprobs=0)))
            asking = asyncio.create_task(answer)
            await until(lambda: flags[0] == 1)
            flags[1] = 1
            told = [one.token for delta in (await asking).deltas for one in delta.logprobs]
            assert len(told) == 3
            assert len(set(told)) == 1

    run(work())
