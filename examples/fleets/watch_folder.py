"""Watch a folder, and summarise each text that comes or changes, into a folder `summaries`.

python examples/fleets/watch_folder.py --seconds 0
python examples/fleets/watch_folder.py ~/inbox --output ~/inbox/summaries

Each file is a run of PyAgent's own agent `summarize`. A file is known by what is in it: stopped and started again, the
program goes on where it was. A file that fails is told, and tried again when it changes. All runs share one budget.
"""

import argparse
import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pyagent import Backend, BudgetError, DeadlineError, Fleet, PyAgentError, Task, follow, load_settings

SAMPLE = Path(__file__).parent / "samples" / "notes"
LIMITS = {"budget.fleet.tokens": 500_000, "budget.run.tokens": 50_000, "budget.run.seconds": 300}
MAX_BYTES, POLL_SECONDS = 1_000_000, 1.0
SUFFIXES = {".txt", ".md", ".rst"}


class Known(msgspec.Struct):
    """What was read: for each file's name the hash of what was in it, and how it ended."""

    files: dict[str, tuple[str, str]] = {}


class Watcher:
    """Remembers beside the summaries what is done."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder, self.output = folder, output
        output.mkdir(parents=True, exist_ok=True)
        self._state = self.output / ".known.json"
        self.known = self._read_state()

    def _read_state(self) -> Known:
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=Known)
        except (OSError, msgspec.DecodeError):  # the first time, or somebody wrote into it: everything is new
            return Known()

    def changed(self) -> Iterator[tuple[Path, str]]:
        """Yield the files that came or changed since they were done, each with its hash."""
        for file in sorted(self.folder.iterdir()):
            if file.suffix.lower() in SUFFIXES and file.is_file() and 0 < file.stat().st_size <= MAX_BYTES:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                if self.known.files.get(file.name, ("", ""))[0] != digest:
                    yield file, digest

    def done(self, file: Path, digest: str, how: str, summary: str = "") -> None:
        """Write the summary, and then that it is written: a crash between the two costs a second summary, no more."""
        if summary:
            write(self.output / f"{file.name}.summary.txt", summary)
        self.known.files[file.name] = digest, how
        write(self._state, msgspec.json.encode(self.known).decode())


def write(file: Path, text: str) -> None:
    """Write a file all or nothing."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)


async def summarise(fleet: Fleet, watcher: Watcher, file: Path, digest: str) -> None:
    """Summarise one file; what goes wrong with it is told, and ends no more than this file."""
    try:
        summary = str(await follow(fleet.run(Task(text="Summarize.", files=(str(file),)), agent="summarize")))
    except (BudgetError, DeadlineError):
        raise
    except PyAgentError as error:
        print(f"{file.name}: {error}")
        watcher.done(file, digest, str(error))
    else:
        print(f"{file.name}: {summary}")
        watcher.done(file, digest, "done", summary)


async def main(folder: Path, output: Path, seconds: float | None, *, backend: Backend | None = None) -> Known:
    """Look until so many seconds are over, or for ever; return what is known then."""
    ends_at = time.monotonic() + seconds if seconds is not None else float("inf")
    watcher = await asyncio.to_thread(Watcher, folder, output)
    settings = load_settings(overrides=LIMITS).settings
    async with Fleet(settings, backend=backend, agents=["summarize"], tools=[]) as fleet:
        while True:
            for file, digest in await asyncio.to_thread(lambda: list(watcher.changed())):
                await summarise(fleet, watcher, file, digest)
            if time.monotonic() >= ends_at:
                return watcher.known
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, ends_at - time.monotonic())))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Summarise the texts of a folder as they come.")
    options.add_argument("folder", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--output", type=Path, default=Path("summaries"), help="a folder for this one's summaries")
    options.add_argument("--seconds", type=float, help="how long to watch; 0 looks once (until Ctrl+C)")
    given = options.parse_args()
    if not given.folder.is_dir():
        sys.exit(f"watch_folder: {given.folder} is no folder")
    try:
        known = asyncio.run(main(given.folder, given.output, given.seconds))
    except KeyboardInterrupt:
        sys.exit("watch_folder: stopped; what was summarised is kept")
    except (PyAgentError, OSError) as error:
        sys.exit(f"watch_folder: {error}")
    print(f"{len(known.files)} texts are known")
