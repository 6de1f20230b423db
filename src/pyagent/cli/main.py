"""The `pyagent` command: names every sub-command, imports the one that is asked for, and says errors in one line.

`pyagent --help` imports none of them: their one-line texts stand here.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Never

import typer
from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from pyagent import __version__
from pyagent.core.errors import PyAgentError

COMMANDS = {
    "run": "Give a task to the fleet and watch it work.",
    "chat": "Talk to the default chain.",
    "agent": "Give a task to one agent, or list the agents.",
    "serve": "Answer OpenAI clients over HTTP.",
    "demo": "Watch three agents solve a mixed task.",
    "doctor": "Say what this machine can do and what is missing.",
    "models": "List, fetch and inspect models.",
    "runs": "Look at past runs.",
    "cache": "Look into a running server's prompt cache.",
    "chain": "Explain which backends a request would try.",
    "config": "Show the settings and where they come from.",
    "plugins": "List and inspect plugins.",
    "version": "Print the version.",
}


class _LazyCommand(TyperCommand):
    """Knows its name and one line of help; becomes the real command when it is used."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command."""
        module = import_module(f"pyagent.cli.{self.name}")
        command: Any = typer.main.get_command(module.app)
        command.name = self.name
        return command.make_context(info_name, args, parent=parent, **extra)


class _LazyGroup(TyperGroup):
    """Lists the commands without importing their modules."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The names, in the order people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A stand-in for the command."""
        if cmd_name not in COMMANDS:
            return None
        return self.commands.get(cmd_name) or _LazyCommand(cmd_name, callback=None, help=COMMANDS[cmd_name])


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A fleet of AI agents on your own machines, with the inference engine inside.",
)


@app.callback()
def root(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False) -> None:
    """Runs before every command; `main` reads --debug itself."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"pyagent {__version__}")


def main() -> Never:
    """Run the command line. Exit codes: 0 well, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:]
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except PyAgentError as error:
        if "--debug" in arguments:
            raise
        code = fail(error)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run one command; wrong usage is click's to explain, in two lines."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="pyagent", standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        name = context.command_path if context else "pyagent"
        sys.stderr.write(f"error: {error.format_message()}\n{name} --help shows what there is\n")
        return 2
    return result if isinstance(result, int) else 0


def fail(error: PyAgentError) -> int:
    """Say what went wrong, in one line, and give the exit code."""
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
    return 1
