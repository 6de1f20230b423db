"""A worker that does what it is asked: waits, dies, fills memory, writes, or tells its process and its questions."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Literal

import msgspec

from pyagent.logic.sandbox.serving import bound_process, serve


class Order(msgspec.Struct, frozen=True):
    """What to do, and for how many seconds where it is to wait."""

    what: Literal["tell", "wait", "spin", "exit", "fill", "write"] = "tell"
    seconds: float = 0.0


class Told(msgspec.Struct, frozen=True):
    """The process that answered, and its questions so far."""

    process_id: int
    num_asked: int


def main() -> None:
    """Serve until standard input ends."""
    bound_process(int(sys.argv[1]))
    num_asked = 0

    def answer(order: Order) -> Told:
        nonlocal num_asked
        num_asked += 1
        match order.what:
            case "tell":
                pass
            case "wait":
                time.sleep(order.seconds)
            case "exit":
                os._exit(3)
            case "fill":
                bytearray(2 << 30)
            case "spin":
                while True:
                    pass
            case "write":
                with tempfile.TemporaryFile(buffering=0) as file:
                    file.write(b"x")
        return Told(os.getpid(), num_asked)

    serve(Order, answer)


if __name__ == "__main__":
    main()
