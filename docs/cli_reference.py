"""Prints docs/reference/cli.md from the commands themselves; `tests/unit/test_docs.py` compares the two.

.venv/bin/python docs/cli_reference.py > docs/reference/cli.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from pyagent.cli.root import COMMANDS, app, real_command

_NOT_SHOWN = {"install_completion", "show_completion", "help"}
_INTRO = """# Command line

Made by `docs/cli_reference.py` from the commands; do not edit.

Every command takes `--help`; `pyagent --debug COMMAND` shows tracebacks. `--json` writes JSON for programs. The flags
`--chain`, `--model` and `--config` stand above the [settings](settings.md). Exit codes: 0 well, 1 failed, 2 wrong
usage, 130 interrupted.
"""


def load(name: str) -> Any:
    """The click command behind `pyagent NAME`."""
    inside: Any = typer.main.get_command(app)
    return inside.commands[name] if name in inside.commands else real_command(name)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command people see, with its words: `runs list`."""
    for name in COMMANDS:
        command = load(name)
        if not hasattr(command, "commands"):
            yield name, command
            continue
        for word, inner in command.commands.items():
            if not inner.hidden:
                yield f"{name} {word}", inner


def shown_parameters(command: Any) -> list[Any]:
    """Its arguments, then its options."""
    shown = [each for each in command.params if each.name not in _NOT_SHOWN and not each.hidden]
    return sorted(shown, key=lambda each: each.param_type_name != "argument")


def usage(parameter: Any) -> str:
    """How a parameter is written: `TASK`, `[NAME]`, `--json`, `--seconds SECONDS`."""
    if parameter.param_type_name == "argument":
        name = parameter.name.upper()
        return name if parameter.required else f"[{name}]"
    if parameter.is_flag:
        return parameter.opts[0]
    return f"{parameter.opts[0]} {parameter.metavar or parameter.name.upper()}"


def render() -> str:
    """The page."""
    parts = [_INTRO]
    for words, command in commands():
        parameters = shown_parameters(command)
        words_of_usage = [usage(each) for each in parameters if each.param_type_name == "argument"]
        has_options = len(parameters) > len(words_of_usage)
        words_of_usage += ["[WORDS...]"] if (command.context_settings or {}).get("allow_extra_args") else []
        words_of_usage += ["[OPTIONS]"] if has_options else []
        line = " ".join(["pyagent", words, *words_of_usage])
        parts += [f"\n## {words}\n", f"\n    {line}\n", f"\n{inspect.cleandoc(command.help or '')}\n"]
        if parameters:
            parts.append("\n| | meaning |\n|---|---|\n")
        for each in parameters:
            default = f" Default: `{each.default}`." if _has_default(each) else ""
            text = (each.help or "").replace("|", "\\|")
            parts.append(f"| `{usage(each)}` | {text}{default} |\n")
    return "".join(parts)


def _has_default(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not parameter.is_flag and parameter.default is not None


if __name__ == "__main__":
    sys.stdout.write(render())
