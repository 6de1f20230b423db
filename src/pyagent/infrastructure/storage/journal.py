"""The journal on disk: one folder a run, in it shards of JSON lines that are only ever appended to.

    journal/r-7f3a/0b.jsonl     {"number":12,"event":{...},"check":"9f21c0aa"}

A record goes to the shard that a stable hash of its step names, by one `write` to a file opened for appending: agents
share no lock, and nothing of a record waits in this process. `check` is the CRC-32 of the record without it. A process
killed in mid-write can leave one torn line at the end of one shard: it is cut off when the run is next read by
anybody, unless its writer still lives (it holds a lock on the folder). Damage elsewhere ends the replay before it, with
a warning. A journal that cannot be written never stops a run: what is lost is warned of, and `loss` says why.

Old runs are deleted when new ones begin, by number and age; never one whose writer lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.journal import (
    PRIVATE_LOSS,
    PRIVATE_PREFIX,
    JournalRecord,
    RunSummary,
    private_run_id,
    summarize_run,
)

NUM_SHARDS = 16
_CHECK = b',"check":"%08x"}\n'
_CHECK_BYTES = len(_CHECK % 0)
_LOCK_NAME = ".writer"
_RUNS_BETWEEN_PRUNINGS = 32
_MAX_LOSSES = 100

logger = logging.getLogger("pyagent.journal")
_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder = msgspec.json.Decoder(JournalRecord)


def shard_name(key: str) -> str:
    """Return the file of a key, the same on every machine and in every process."""
    digest = blake2b(key.encode(), digest_size=8).digest()
    return f"{int.from_bytes(digest) % NUM_SHARDS:02x}.jsonl"


def encode_line(record: JournalRecord) -> bytes:
    """Return a record as its line. A value that cannot be written as JSON is named in its place."""
    try:
        body = _encoder.encode(record)
    except Exception:  # noqa: BLE001 - outputs are of other people's types
        fields = {name: _writable(getattr(record.event, name)) for name in record.event.__struct_fields__}
        event = msgspec.structs.replace(record.event, **fields)
        body = _encoder.encode(msgspec.structs.replace(record, event=event))
    return body[:-1] + _CHECK % zlib.crc32(body)


def _writable(value: object) -> object:
    """Return a field's value, or what stands for it; a mapping keeps those of its values that can be written."""
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {key: _named(each) for key, each in items if isinstance(key, str)}
    return _named(value)


def _named(value: object) -> object:
    try:
        _encoder.encode(value)
    except Exception:  # noqa: BLE001 - as above
        return f"<a {type(value).__name__} that cannot be written as JSON>"
    return value


def decode_line(line: bytes) -> JournalRecord | None:
    """Return the record of a line (with its newline); None when the line is torn or damaged."""
    body = line[:-_CHECK_BYTES] + b"}"
    if len(line) <= _CHECK_BYTES or line[-_CHECK_BYTES:] != _CHECK % zlib.crc32(body):
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


@dataclass(slots=True)
class _OpenRun:
    folder: Path
    lock: int
    shards: dict[str, int] = field(default_factory=dict[str, int])
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class KeptRun:
    """What is left of a run: its whole records in order, the numbers missing among them, and lines that are damaged."""

    records: list[JournalRecord]
    missing: list[int]
    num_damaged: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing that was kept is damaged."""
        return not (self.missing or self.num_damaged)


class FileJournal:
    """Runs under `folder`, which is made when the first run is opened; None keeps runs of any number or age."""

    def __init__(self, folder: Path, *, max_runs: int | None = None, max_age_days: float | None = None) -> None:
        self._folder = folder
        self._max_runs = max_runs
        self._max_age_days = max_age_days
        self._open: dict[str, _OpenRun] = {}
        self._losses: dict[str, str] = {}
        self._num_opened = 0

    def open_run(self, *, is_private: bool = False) -> str:
        """Return a new run's id. Where the folder cannot be written, the run goes on unkept, with a warning."""
        if is_private:
            return private_run_id()
        if self._num_opened % _RUNS_BETWEEN_PRUNINGS == 0:
            self.prune(self._max_runs, self._max_age_days)
        self._num_opened += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            folder = self._new_folder()
            lock = os.open(folder / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            run = private_run_id()
            self._lose(run, f"{self._folder} cannot be written ({error.strerror}); set paths.data")
            return run
        self._open[folder.name] = _OpenRun(folder, lock)
        return folder.name

    def _lose(self, run: str, why: str) -> None:
        logger.warning("the journal of %s is not kept: %s", run, why)
        self._losses[run] = why
        while len(self._losses) > _MAX_LOSSES:
            del self._losses[next(iter(self._losses))]

    def loss(self, run: str) -> str:
        """Say why not all of a run of this process is kept; empty when all of it is."""
        return self._losses.get(run, PRIVATE_LOSS if run.startswith(PRIVATE_PREFIX) else "")

    def _new_folder(self) -> Path:
        num_bytes = 2
        while True:  # the folder's name is the claim: making it fails when another process has it
            folder = self._folder / f"r-{secrets.token_hex(num_bytes)}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder
            num_bytes = min(num_bytes + 1, 8)

    def append(self, run: str, shard_key: str, record: JournalRecord) -> None:
        """Keep a record. A full disk does not end the run: the journal of this run ends instead, with one warning."""
        opened = self._open.get(run)
        if opened is None or opened.is_broken:
            return
        line = encode_line(record)
        try:
            _append_whole(self._shard(opened, shard_key), line)
        except OSError as error:
            opened.is_broken = True
            self._lose(run, f"{error.strerror}, from record {record.number} on")
            if record.number == 0:
                shutil.rmtree(opened.folder, ignore_errors=True)  # there is nothing to show

    def _shard(self, opened: _OpenRun, key: str) -> int:
        name = shard_name(key)
        if name not in opened.shards:
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            opened.shards[name] = os.open(opened.folder / name, flags, 0o600)
        return opened.shards[name]

    def close_run(self, run: str) -> None:
        """Nothing more comes: force what was written to the disk, and let go of the run."""
        opened = self._open.pop(run, None)
        if opened is None:
            return
        for shard in opened.shards.values():
            with contextlib.suppress(OSError):
                os.fsync(shard)
            os.close(shard)
        os.close(opened.lock)

    def replay(self, run: str) -> list[JournalRecord]:
        """Return the run's records in order, up to the first one missing."""
        kept = self.read(run)
        records = [record for number, record in enumerate(kept.records) if record.number == number]
        if not kept.is_whole:
            logger.warning(
                "the journal of %s is damaged: %d of %d records are used", run, len(records), len(kept.records)
            )
        return records

    def read(self, run: str) -> KeptRun:
        """Read all that is left of a run, also after damage; raises `RequestError` for an unknown run."""
        folder = self._folder_of(run)
        _repair(folder)
        lines = [line for shard in sorted(folder.glob("*.jsonl")) for line in _lines(shard)]
        decoded = [decode_line(line) for line in lines]
        records = sorted((record for record in decoded if record is not None), key=lambda record: record.number)
        numbers = {record.number for record in records}
        missing = [number for number in range(max(numbers, default=-1)) if number not in numbers]
        return KeptRun(records, missing, num_damaged=decoded.count(None))

    def remove(self, run: str) -> None:
        """Delete a run; raises `RequestError` for an unknown one, and for one that is still written."""
        if not _delete(self._folder_of(run)):
            raise RequestError(f"{run} is still running; stop it first", param="run")

    def prune(self, max_runs: int | None, max_age_days: float | None) -> list[str]:
        """Delete all but the newest `max_runs` runs, and those older than `max_age_days`; return their ids."""
        ages = sorted((time.time() - _mtime(folder), folder) for folder in self._folders())
        oldest = float("inf") if max_age_days is None else max_age_days * 86_400
        kept = len(ages) if max_runs is None else max_runs
        old = [folder for number, (age, folder) in enumerate(ages) if number >= kept or age > oldest]
        return [folder.name for folder in old if _delete(folder)]

    def _folder_of(self, run: str) -> Path:
        folder = self._folder / run
        if not run.startswith("r-") or run != Path(run).name or not folder.is_dir():
            raise unknown_name("run", run, [folder.name for folder in self._folders()])
        return folder

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        rows = [self._summary(folder) for folder in self._folders()]
        return sorted((row for row in rows if row), key=lambda row: row.started_at, reverse=True)

    def _summary(self, folder: Path) -> RunSummary | None:
        """From the shard of the run's own events, which holds the first and the last; None when nothing was kept."""
        shard = folder / shard_name(f"{folder.name}/")
        records = [record for line in _lines(shard) if (record := decode_line(line))] if shard.is_file() else []
        summary = summarize_run(folder.name, records)
        if summary is None and any(folder.glob("*.jsonl")):
            return RunSummary(run=folder.name, started_at=_mtime(folder), task="", state="damaged")
        return summary

    def _folders(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [folder for folder in self._folder.iterdir() if folder.name.startswith("r-") and folder.is_dir()]


def _append_whole(shard: int, line: bytes) -> None:
    """Write all of the line or none of it."""
    num_written = os.write(shard, line)
    if num_written < len(line):
        os.ftruncate(shard, os.fstat(shard).st_size - num_written)
        raise OSError(28, "no space left for a whole record")


def _lines(shard: Path) -> Iterator[bytes]:
    """The whole lines of a shard: a last one without its end is still being written."""
    with shard.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line


def _mtime(folder: Path) -> float:
    """When a shard was last added to the run's folder, in seconds since 1970; 0 when it is gone."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _delete(folder: Path) -> bool:
    """Delete a run's folder, unless its writer lives."""
    with contextlib.suppress(OSError):
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _repair(folder: Path) -> None:
    """Cut torn ends off, unless a writer lives or the folder is not ours to write."""
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in folder.glob("*.jsonl"):
            _cut_torn_end(path)
    except OSError as error:
        logger.debug("the journal in %s is read as it is: %s", folder, error)
    finally:
        os.close(lock)


def _cut_torn_end(path: Path) -> None:
    """Truncate the file after its last whole line."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
