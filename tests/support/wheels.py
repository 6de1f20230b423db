"""Small wheels for tests of fetching: built here, installed by the real pip or uv without a network."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def build_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel of these files into `folder`; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    written = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*written, f"{info}/RECORD"])
    wheel = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in {**written, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, data)
    return wheel
