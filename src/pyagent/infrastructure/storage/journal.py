"""The journal on disk: one folder a run, in it shards of JSON lines that are only ever appended to.

    journal/r-7f3a/0b.jsonl     {"number":12,"event":{...},"check":"9f21c0aa"}

A record goes to the shard that a stable hash of its step names, by one `write` to a file opened for appending: agents
share no lock, and nothing of a record waits in this process. `check` is the CRC-32 of the record without it. A process
killed in mid-write can leave one torn line at the end of one shard: it is cut off when the run is next read by
anybody, unless its writer still lives (it holds a lock on the folder). Damage elsewhere ends the replay before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec

from pyagent.core.errors import ConfigError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.journal import JournalRecord, RunSummary, summarize_run

NUM_SHARDS = 16
_CHECK = b',"check":"%08x"}\n'
_CHECK_BYTES = len(_CHECK % 0)
_LOCK_NAME = ".writer"

logger = logging.getLogger("pyagent.journal")
_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder = msgspec.json.Decoder(JournalRecord)


def shard_name(key: str) -> str:
    """The file of a key, the same on every machine and in every process."""
    digest = blake2b(key.encode(), digest_size=8).digest()
    return f"{int.from_bytes(digest) % NUM_SHARDS:02x}.jsonl"


def encode_line(record: JournalRecord) -> bytes:
    """A record as its line."""
    body = _encoder.encode(record)
    return body[:-1] + _CHECK % zlib.crc32(body)


def decode_line(line: bytes) -> JournalRecord | None:
    """The record of a line (with its newline); None when the line is torn or damaged."""
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


class FileJournal:
    """Runs under `folder`, which is made when the first run is opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, _OpenRun] = {}

    def open_run(self) -> str:
        """A new run's id; raises `ConfigError` when the folder cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            folder = self._new_folder()
            lock = os.open(folder / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = f"the journal in {self._folder} cannot be written: {error.strerror}; set paths.data"
            raise ConfigError(message, key="paths.data") from error
        self._open[folder.name] = _OpenRun(folder, lock)
        return folder.name

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
            logger.warning("the journal of %s ends at record %d: %s", run, record.number, error.strerror)

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
        """The run's records in order, up to the first one missing."""
        folder = self._folder / run
        if not run.startswith("r-") or run != Path(run).name or not folder.is_dir():
            raise unknown_name("run", run, [folder.name for folder in self._folders()])
        _repair(folder)
        shards = sorted(folder.glob("*.jsonl"))
        records = sorted((record for shard in shards for record in _records(shard)), key=lambda record: record.number)
        return [record for number, record in enumerate(records) if record.number == number]

    def runs(self) -> list[RunSummary]:
        """The runs kept, newest first."""
        rows = [self._summary(folder) for folder in self._folders()]
        return sorted((row for row in rows if row), key=lambda row: row.started_at, reverse=True)

    def _summary(self, folder: Path) -> RunSummary | None:
        """From the shard of the run's own events, which holds the first and the last."""
        shard = folder / shard_name(f"{folder.name}/")
        return summarize_run(folder.name, list(_records(shard))) if shard.is_file() else None

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


def _records(shard: Path) -> Iterator[JournalRecord]:
    with shard.open("rb") as lines:
        for line in lines:
            if (record := decode_line(line)) is not None:
                yield record


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
