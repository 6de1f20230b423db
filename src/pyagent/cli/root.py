"""Every sub-command by name: the one that is asked for is imported, and `pyagent --help` imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from pyagent import __version__

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
    "chain": "Explain and test the backends that are tried.",
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


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; wrong usage is click's to explain, in two lines."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=list(arguments), prog_name="pyagent", standalone_mode=False)
    except typer.Abort:
        return 130
    except typer.Exit as done:
        return done.exit_code
    except TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        name = context.command_path if context else "pyagent"
        sys.stderr.write(f"error: {error.format_message()}\n{name} --help shows what there is\n")
        return 2
    return result if isinstance(result, int) else 0
