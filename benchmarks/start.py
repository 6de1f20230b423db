"""How long PyAgent takes to start, over a bare interpreter: `python benchmarks/start.py [--runs N] [--check]`.

Each figure is the least of N runs of a fresh process, all commands taking turns, so that a busy moment of the machine
hits all of them. `--check` exits 1 when a promise is broken: `import pyagent` < 150 ms and `pyagent --help` < 300 ms
over the interpreter; and no heavy module imported by either. With a model in the store, the time to the first token of
`pyagent chat` is shown too (promise: < 1 s after process start).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

MAIN = "from pyagent.cli.main import main; main()"
COMMANDS = {
    "bare interpreter": ["-c", "pass"],
    "import pyagent": ["-c", "import pyagent"],
    "pyagent --help": ["-c", MAIN, "--help"],
    "pyagent version": ["-c", MAIN, "version"],
}
LIMITS_MS = {"import pyagent": 150.0, "pyagent --help": 300.0}
HEAVY = ("torch", "numpy", "sympy", "httpx", "starlette", "uvicorn", "tokenizers", "structlog")


def run_ms(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def first_token_ms() -> float | None:
    """Milliseconds from process start to the first byte of an answer in `pyagent chat`; None without a model."""
    probe = (
        "import sys; from pyagent.core.config import load_settings; from pyagent.infrastructure.models.store import "
        "ModelStore; s = load_settings().settings; sys.exit(not ModelStore(s.paths.models).find(s.engine.models[0]))"
    )
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        return None
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "chat", "--chain", "native"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as chat:
        assert chat.stdin
        assert chat.stdout
        chat.stdin.write(b"Say hi.\n")
        chat.stdin.flush()
        os.read(chat.stdout.fileno(), 1)
        spent = (time.perf_counter() - start) * 1000
        chat.kill()
    return spent


def heavy_modules(arguments: list[str]) -> list[str]:
    """Heavy modules that a command imports."""
    code = f"import sys, atexit; sys.argv = ['pyagent', *{arguments[2:]!r}]\n"
    code += f"atexit.register(lambda: print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
    done = subprocess.run([sys.executable, "-c", code + arguments[1]], check=False, capture_output=True, text=True)
    return done.stderr.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(options.runs):
        for name, arguments in COMMANDS.items():
            best[name] = min(best[name], run_ms(arguments))
    bare, is_broken = best["bare interpreter"], False
    print(f"{'':<18} {'ms':>7} {'over bare':>10} {'promise':>9}")
    for name, spent in best.items():
        limit = LIMITS_MS.get(name)
        heavy = heavy_modules(COMMANDS[name]) if limit else []
        is_broken |= bool(heavy) or (limit is not None and spent - bare > limit)
        print(f"{name:<18} {spent:7.0f} {spent - bare:10.0f} {f'< {limit:.0f}' if limit else '':>9} {' '.join(heavy)}")
    firsts = [spent for spent in (first_token_ms() for _ in range(min(3, options.runs))) if spent is not None]
    if firsts:
        print(f"{'first token, chat':<18} {min(firsts):7.0f} {'':>10} {'< 1000':>9}")
    return int(options.check and is_broken)


if __name__ == "__main__":
    sys.exit(main())
