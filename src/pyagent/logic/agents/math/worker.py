"""The process that computes: reads actions as JSON lines, answers in kind, and may be killed at any time.

It bounds its own memory, writes no file, and speaks only to its parent, by pipes.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import warnings
from collections.abc import Callable

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math.actions import Action, Solved


class WorkerResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result, or why there is none: `refused` when the question is at fault."""

    result: Solved | None = None
    refused: str = ""
    failed: str = ""


def main() -> None:
    """Serve until standard input ends."""
    memory_bytes = int(sys.argv[1])
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.set_int_max_str_digits(0)
    warnings.simplefilter("ignore")
    from pyagent.logic.agents.math import compute

    decoder = msgspec.json.Decoder(Action)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        reply = _answer(compute.compute, decoder, line)
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


def _answer(compute: Callable[[Action], Solved], decoder: msgspec.json.Decoder[Action], line: bytes) -> WorkerResult:
    try:
        return WorkerResult(result=compute(decoder.decode(line)))
    except RequestError as error:
        return WorkerResult(refused=str(error))
    except ZeroDivisionError:
        return WorkerResult(refused="this is not defined: a division by zero")
    except MemoryError:
        return WorkerResult(failed="it needs more memory than a sum may use")
    except RecursionError:
        return WorkerResult(failed="it nests too deep")
    except Exception as error:  # noqa: BLE001 - sympy raises nearly anything; the parent names the question
        return WorkerResult(failed=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()
