"""A PyAgent plugin with a compiled logits processor: `soft_cap` bounds logits softly, in Rust.

`rustc -O --edition 2024 --crate-type cdylib -o soft_cap.so soft_cap.rs` builds what lies beside this module.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pyagent.plugin import LogitsProcessorFactory, RequestLogitsProcessor, Vocabulary, hookimpl

LIBRARY = Path(__file__).with_name("soft_cap.so")


@cache
def compiled() -> Any:
    """The function. A call through `CDLL` lets go of the interpreter lock; `PyDLL` would hold it."""
    function = ctypes.CDLL(str(LIBRARY)).soft_cap
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float], None
    return function


class SoftCap:
    """`{"name": "soft_cap", "args": {"cap": 30}}`"""

    name = "soft_cap"
    arguments = {"properties": {"cap": {"type": "number", "exclusiveMinimum": 0}}, "required": ["cap"]}
    is_argmax_invariant = True

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> RequestLogitsProcessor:
        """The floats themselves are handed over: their address, and how many there are."""
        function, cap = compiled(), args["cap"]
        floats = ctypes.c_float * vocabulary.size

        def soft_cap(prompt: Sequence[int], output: Sequence[int], logits: "memoryview[float]") -> None:
            function(ctypes.addressof(floats.from_buffer(logits)), len(logits), cap)

        return soft_cap


@hookimpl
def pyagent_register_logits_processors() -> list[LogitsProcessorFactory]:
    """The processor `soft_cap`."""
    return [SoftCap()]
