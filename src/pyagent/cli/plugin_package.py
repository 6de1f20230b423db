"""What `pyagent plugins new` writes: a package that installs, with tests that pass and types that a checker accepts.

Names and a kind in, files out; nothing is read but the templates beside this module, and nothing is written.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple

from pyagent.core.errors import RequestError

Kind = Literal["agent", "backend", "tool", "parser", "policy", "runner", "command"]
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME = 40
MAX_DESCRIPTION = 100
_TEMPLATES = Path(__file__).parent / "templates"


class KindOfPlugin(NamedTuple):
    """What a plugin of the kind brings (its hook's noun), what it is, and how it is tried."""

    noun: str
    description: str
    use: str


KINDS: dict[Kind, KindOfPlugin] = {
    "agent": KindOfPlugin("agents", "Answers in one sentence.", 'pyagent agent {name} "why is the sky blue"'),
    "backend": KindOfPlugin(
        "backends",
        "Any program that reads a prompt and writes an answer, as a backend.",
        'pyagent run "hello" --chain {name}:cat',
    ),
    "tool": KindOfPlugin("tools", "Counts the words of a text.", "pyagent plugins show {name}"),
    "parser": KindOfPlugin(
        "dialects", "Reads tool calls that a model writes in a tag of its own.", "pyagent plugins show {name}"
    ),
    "policy": KindOfPlugin(
        "queue_policies", "The request with the least left to do goes first.", "pyagent plugins show {name}"
    ),
    "runner": KindOfPlugin("runners", "A device that repeats what followed last time.", "pyagent plugins show {name}"),
    "command": KindOfPlugin("commands", "Count the words of a file.", "pyagent {name} README.md"),
}


class Package(NamedTuple):
    """A plugin that is to be written. `name` is the plugin's, and that of the one thing it brings."""

    kind: Kind
    name: str
    description: str

    @property
    def distribution(self) -> str:
        """What an installer calls it."""
        return f"pyagent-{self.name}"

    @property
    def module(self) -> str:
        """What Python calls it."""
        return self.distribution.replace("-", "_")

    @property
    def use(self) -> str:
        """Return a command that uses it, or shows it where only settings do."""
        return KINDS[self.kind].use.format(name=self.name)


def package_of(kind: Kind, name: str, description: str) -> Package:
    """Return the package; raise `RequestError` for a name or a description that will not do."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        text = f"a plugin's name is at most {MAX_NAME} of a-z, 0-9 and single hyphens after a letter, got {name!r:.60}"
        raise RequestError(f"{text}; try 'my-{kind}'", param="name")
    if len(description) > MAX_DESCRIPTION or not description.isprintable() or set(description) & set('"\\'):
        text = f'a description is one line of at most {MAX_DESCRIPTION} characters without " and \\'
        raise RequestError(f"{text}, got {description!r:.60}", param="description")
    return Package(kind, name, description.strip() or KINDS[kind].description)


def files_of(package: Package) -> dict[str, str]:
    """Return the package's files by their paths."""
    values = {
        "name": package.name,
        "noun": KINDS[package.kind].noun,
        "description": package.description,
        "distribution": package.distribution,
        "package": package.module,
        "class_name": "".join(part.capitalize() for part in package.name.split("-")),
        "use": package.use,
    }
    template_to_path = {
        "pyproject": "pyproject.toml",
        "readme": "README.md",
        package.kind: f"src/{package.module}/__init__.py",
        f"{package.kind}_test": f"tests/test_{package.module.removeprefix('pyagent_')}.py",
    }
    files = {path: _template(name).substitute(values) for name, path in template_to_path.items()}
    return files | {f"src/{package.module}/py.typed": ""}


def _template(name: str) -> Template:
    return Template((_TEMPLATES / f"{name}.txt").read_text(encoding="utf-8"))
