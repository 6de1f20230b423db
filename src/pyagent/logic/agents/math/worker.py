"""The process that computes: reads actions as JSON lines, answers in kind, and may be killed at any time.

It bounds its own memory and processor time, writes no file, and speaks only to its parent, by pipes.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import warnings
from collections.abc import Callable

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math.actions import Action, Solved


class Question(msgspec.Struct, frozen=True):
    """An action, and the seconds of the processor that it may take."""

    action: Action
    seconds: float


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

    decoder = msgspec.json.Decoder(Question)
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        reply = _answer(compute.compute, decoder, line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


def _answer(compute: Callable[[Action], Solved], decoder: msgspec.json.Decoder[Question], line: bytes) -> WorkerResult:
    try:
        question = decoder.decode(line)
        signal.setitimer(signal.ITIMER_PROF, question.seconds)  # SIGPROF ends the process, whatever it is at
        return WorkerResult(result=compute(question.action))
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
