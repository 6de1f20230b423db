"""Every sub-command by name: the one that is asked for is imported, and `pyagent --help` imports none of ours.

Plugins bring more by the hook `pyagent_register_commands`; a built-in name is always the built-in command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from pyagent import __version__
from pyagent.cli.wrong_usage import usage_fault
from pyagent.core.errors import PyAgentError
from pyagent.core.nearest import did_you_mean
from pyagent.core.one_line import printable

COMMANDS = {
    "run": "Give a task to the fleet and watch it work.",
    "chat": "Talk to the default chain.",
    "agent": "Give a task to one agent, or list the agents.",
    "serve": "Answer OpenAI clients over HTTP.",
    "node": "Serve, and share work with the other nodes of a cluster.",
    "cluster": "Make, join and look at a cluster of nodes.",
    "stop": "End a server that runs.",
    "demo": "Watch six agents at work, side by side.",
    "doctor": "Say what this machine can do and what is missing.",
    "bench": "Measure tokens per second.",
    "replace": "Search and replace in many files, all or none, with undo.",
    "change": "Check a patch in a copy, and keep it when it passes.",
    "score": "Say how likely a model finds a text.",
    "models": "List, fetch and inspect models.",
    "runs": "Look at runs, go on with them, and delete them.",
    "memory": "Look at what agents keep across runs, and delete it.",
    "webhooks": "Tell other programs what runs do, by signed webhooks.",
    "search": "Find passages of past runs, or of files.",
    "profile": "Watch what a running server does.",
    "cache": "Look into a running server's prompt cache.",
    "chain": "Explain and test the backends that are tried.",
    "config": "Show the settings and where they come from.",
    "plugins": "List, load and write plugins.",
    "mcp": "List the MCP servers whose tools agents use, or be one.",
    "completion": "Print the completion script of a shell.",
    "help": "Show the help of a command.",
    "version": "Print the version.",
}


class _LazyCommand(TyperCommand):
    """Knows its name and one line of help; becomes the real command when it is used."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make the context of the real command."""
        command = real_command(str(self.name))
        return command.make_context(info_name, args, parent=parent, **extra)


def real_command(name: str) -> Any:
    """Import a command; its help is plain text, as that of the group is."""
    return _plain(typer.main.get_command(import_module(f"pyagent.cli.{name}").app), name)


def _plain(command: Any, name: str) -> Any:
    """Name the command, and show its help as plain text."""
    command.name = name
    for each in (command, *getattr(command, "commands", {}).values()):
        each.rich_markup_mode = None
    return command


def _plugin_commands() -> Mapping[str, Callable[..., object]]:
    """The commands that plugins bring; only plugins that say so in their metadata are imported."""
    from pyagent.assembly import make_host
    from pyagent.core.config import load_settings

    return make_host(load_settings().settings).commands()


def command_of_plugin(name: str, brought: Callable[..., object]) -> Any:
    """A plugin's function, or its `typer.Typer`, as a command like our own."""
    if isinstance(brought, typer.Typer):
        command: Any = typer.main.get_command(brought)
    else:
        made = typer.Typer(add_completion=False)
        made.command(name)(brought)
        command = typer.main.get_command(made)
    return _plain(command, name)


class _LazyGroup(TyperGroup):
    """Lists the commands without importing the modules of the built-in ones."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the names, in the order people meet them; those of plugins last."""
        with suppress(PyAgentError):  # help is shown whatever the settings are
            return [*COMMANDS, *(name for name in _plugin_commands() if name not in COMMANDS)]
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a stand-in for a built-in command, or the command that a plugin brings."""
        if cmd_name in COMMANDS:
            return self.commands.get(cmd_name) or _LazyCommand(cmd_name, callback=None, help=COMMANDS[cmd_name])
        brought = _plugin_commands().get(cmd_name)
        return None if brought is None else command_of_plugin(cmd_name, brought)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names; an unknown one fails with the nearest name."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, self.list_commands(ctx), "`pyagent --help` lists all commands")
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A fleet of AI agents on your own machines, with the inference engine inside.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"pyagent {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Run before every command; `main` reads --debug itself."""


@app.command("version")
def print_version() -> None:
    """Print the version."""
    _print_version(True)


@app.command("help")
def show_help(
    words: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="As `runs show`.")] = None,
) -> None:
    """Show the help of a command, as `--help` after it does."""
    raise typer.Exit(run([*(words or []), "--help"]))


@app.command("completion")
def print_completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that is to complete.")],
) -> None:
    """Print the completion script of a shell; evaluate it where that shell starts."""
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    typer.echo(get_completion_script(prog_name=_PROGRAM, complete_var=_COMPLETION_VARIABLE, shell=shell))


_PROGRAM = "pyagent"
_COMPLETION_VARIABLE = "_PYAGENT_COMPLETE"


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; wrong usage is told in two lines."""
    command: Any = typer.main.get_command(app)
    if _COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
        command._main_shell_completion({}, _PROGRAM, _COMPLETION_VARIABLE)
    try:
        with command.make_context(_PROGRAM, list(arguments)) as context:
            result = command.invoke(context)
    except (typer.Abort, EOFError):
        return 130
    except typer.Exit as done:
        return done.exit_code
    except TyperException as error:
        return _wrong_usage(error, arguments)
    return result if isinstance(result, int) else 0


def _named(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words that name a command, and the command of it that is asked for."""
    if not arguments or arguments[0] not in COMMANDS:
        return ()
    commands = getattr(real_command(arguments[0]), "commands", {})
    return arguments[: 2 if arguments[1:2] and arguments[1] in commands else 1]


def _wrong_usage(error: TyperException, arguments: Sequence[str]) -> int:
    """Tell what is wrong and where help is; a command that wants a sub-command shows its help."""
    context: Any = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split())
    if context is not None and message in {" ".join(context.get_help().split()), "Missing command."}:
        sys.stdout.write(context.get_help() + "\n")
        return 2
    name = context.command_path if context else " ".join([_PROGRAM, *_named(arguments)])
    sys.stderr.write(f"error: {printable(usage_fault(error))}\n{name} --help shows what there is\n")
    return 2
