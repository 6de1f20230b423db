"""The process that computes, as `pyagent.logic.sandbox` runs and bounds it."""

from __future__ import annotations

import sys

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math.actions import Action, Solved
from pyagent.logic.sandbox.serving import bound_process, serve


def main() -> None:
    """Serve until standard input ends."""
    bound_process(int(sys.argv[1]))
    sys.set_int_max_str_digits(0)
    from pyagent.logic.agents.math import compute

    def answer(action: Action) -> Solved:
        try:
            return compute.compute(action)
        except ZeroDivisionError as error:
            raise RequestError("this is not defined: a division by zero") from error

    serve(Action, answer)


if __name__ == "__main__":
    main()
