"""The worker's side: reads questions as JSON lines, answers in kind, and may be killed at any time.

It bounds its own memory and processor time, writes no file, and speaks only to its parent, by pipes.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

import msgspec

from pyagent.core.errors import RequestError

T = TypeVar("T")
READY = b"ready\n"


class Question(msgspec.Struct, frozen=True):
    """What is asked, and the seconds of the processor that it may take."""

    asked: msgspec.Raw
    seconds: float


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result, or why there is none: `refused` when the question is at fault."""

    result: msgspec.Raw = msgspec.Raw()
    refused: str = ""
    failed: str = ""


def bound_process(memory_bytes: int) -> None:
    """Bound this process's memory; let it write no file and leave no core."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")


def serve(kind: object, answer: Callable[[T], object]) -> None:
    """Answer questions of a type until standard input ends. `RequestError` is the question's fault."""
    decoder = msgspec.json.Decoder(kind)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        reply = _reply(answer, decoder, line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


def _reply(answer: Callable[[T], object], decoder: msgspec.json.Decoder[T], line: bytes) -> Reply:
    try:
        question = msgspec.json.decode(line, type=Question)
        asked = decoder.decode(question.asked)
        signal.setitimer(signal.ITIMER_PROF, question.seconds)  # SIGPROF ends the process, whatever it is at
        return Reply(result=msgspec.Raw(msgspec.json.encode(answer(asked))))
    except RequestError as error:
        return Reply(refused=str(error))
    except MemoryError:
        return Reply(failed="it needs more memory than it may use")
    except RecursionError:
        return Reply(failed="it nests too deep")
    except Exception as error:  # noqa: BLE001 - libraries raise nearly anything; the parent names the question
        return Reply(failed=f"{type(error).__name__}: {error}"[:300])
