"""The process that reads code of interfaces, as `pyagent.logic.sandbox` runs and bounds it."""

from __future__ import annotations

import sys

import msgspec

from pyagent.logic.interfaces.elements import Element, cut
from pyagent.logic.interfaces.frameworks import FRAMEWORKS, FrameworkName
from pyagent.logic.sandbox.serving import bound_process, serve

_MAX_DEPTH = 60


class Code(msgspec.Struct, frozen=True):
    """Code and the framework that it is of."""

    text: str
    framework: FrameworkName


def main() -> None:
    """Serve until standard input ends."""
    bound_process(int(sys.argv[1]))
    serve(Code, read)


def read(code: Code) -> Element:
    """Return the page that code says; raises `RequestError` for code that cannot be read."""
    return cut(FRAMEWORKS[code.framework].read(code.text), _MAX_DEPTH)


if __name__ == "__main__":
    main()
