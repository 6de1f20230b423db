"""The packages that `pyagent plugins new` writes, the plugins of the documentation, and what checks them.

    python tests/support/plugin_kinds.py [mypy]

writes one of each kind into a temporary folder, puts the examples beside them and checks the types of all at once,
strictly: by basedpyright, or mypy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from support.installed import find_first, write_distribution

from pyagent.cli.new_plugin import write_package
from pyagent.cli.plugin_package import KINDS, Package, files_of, package_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_kinds(folder: Path) -> list[Package]:
    """Write a package of each kind, named `my-KIND`."""
    packages = [package_of(kind, f"my-{kind}", "") for kind in KINDS]
    for package in packages:
        write_package(folder / package.distribution, files_of(package))
    return packages


def copy_examples(folder: Path) -> None:
    """Put the example plugins, with the tests that run their hook's suite, into a folder like the written ones."""
    for example in sorted(EXAMPLES.glob("pyagent-*")):
        flat = [*example.glob("pyagent_*.py"), *example.glob("*_server.py")]
        for file in flat:
            package = folder / example.name / "src" / file.stem
            package.mkdir(parents=True)
            shutil.copy(file, package / "__init__.py")
        if not flat:
            shutil.copytree(example / "src", folder / example.name / "src")
        (folder / example.name / "tests").mkdir()
        for file in example.rglob("test_*.py"):
            if "Conformance" in file.read_text():
                shutil.copy(file, folder / example.name / "tests")


def install_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Do what `pip install -e` does: the source on the path, and the metadata beside it."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    entries = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["pyagent"].items())
    write_distribution(folder / "src", project["name"], entries, version=project["version"])
    find_first(monkeypatch, folder / "src")


def check_types(folder: Path, checker: str) -> int:
    """Check all packages below a folder in one process, and return its exit code."""
    sources = sorted(map(str, folder.glob("*/src")))
    if checker == "mypy":
        files = sorted(map(str, [*folder.glob("*/src/*/__init__.py"), *folder.glob("*/tests/*.py")]))
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--explicit-package-bases",
            *files,
        ]
        path = os.pathsep.join([*sources, str(Path(__file__).parents[2] / "src")])
        return subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": path}, check=False).returncode
    options = {"typeCheckingMode": "strict", "failOnWarnings": True, "extraPaths": [*sources, *filter(None, sys.path)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    command = [sys.executable, "-m", "basedpyright", "--project", str(folder), "--pythonpath", sys.executable]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        write_kinds(Path(made))
        copy_examples(Path(made))
        sys.exit(check_types(Path(made), sys.argv[1] if sys.argv[1:] else "basedpyright"))
