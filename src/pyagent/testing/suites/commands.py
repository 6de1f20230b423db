"""What every command of the command line must do.

class TestCount(CommandConformance):
    calls = (["README.md"],)

    def make(self):
        return pyagent_register_commands()
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import ClassVar

from pyagent.testing.suites.checks import check_host_takes

Commands = Mapping[str, Callable[..., object]]


class CommandConformance:
    """Derive from it, and define `make`; `calls` are arguments with which the commands end well."""

    calls: ClassVar[Sequence[Sequence[str]]] = ()

    def make(self) -> Commands:
        """Return the commands by name, as the hook does; `calls` are those of the first."""
        raise NotImplementedError

    def test_host_takes_the_commands(self) -> None:
        """They come by names, each with a function or a `typer.Typer`; no name is a built-in command's."""
        from pyagent.cli.root import COMMANDS

        commands = self.make()
        check_host_takes("commands", commands)
        taken = sorted(set(commands) & set(COMMANDS))
        assert not taken, f"{', '.join(taken)}: the built-in command of that name is run instead"
        spaced = [name for name in commands if name != name.strip() or any(one.isspace() for one in name)]
        assert not spaced, f"{spaced[0]!r} cannot be written as one word"

    def test_help_says_what_it_does(self) -> None:
        """`--help` ends well, and has a line that says what the command does."""
        for name, command in self.make().items():
            code, said = _run(name, command, ["--help"])
            assert code == 0, f"{name} --help ends with {code}: {said}"
            doc = (getattr(command, "__doc__", None) or "").strip() if callable(command) else ""
            first = doc.partition("\n")[0]
            if hasattr(command, "__name__"):
                assert first, f"the function of {name} has no docstring: its first line is the help"
                assert " ".join(first.split())[:40] in " ".join(said.split()), f"{name} --help does not say {first!r}"

    def test_unknown_option_ends_with_two(self) -> None:
        """An option that is not there ends with status 2, as everywhere, and is named."""
        for name, command in self.make().items():
            code, said = _run(name, command, ["--no-such-option"])
            assert code == 2, f"{name} --no-such-option ends with {code}"
            assert "no-such-option" in said, f"{name} does not name the option: {said}"

    def test_calls_end_well(self) -> None:
        """Each of `calls` ends without an error."""
        name, command = next(iter(self.make().items()))
        assert self.calls, "`calls` is empty: nothing would be tested"
        for call in self.calls:
            code, said = _run(name, command, call)
            assert code == 0, f"{name} {' '.join(call)} ends with {code}: {said}"


def _run(name: str, command: Callable[..., object], arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process, as the command line would; return its status and all that it wrote."""
    from pyagent.cli.root import command_of_plugin

    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written):
        try:
            command_of_plugin(name, command).main([*arguments], prog_name=f"pyagent {name}", standalone_mode=True)
        except SystemExit as end:
            code = end.code
            return (code if isinstance(code, int) else int(code is not None)), written.getvalue()
        except Exception as error:  # noqa: BLE001 - a plugin's, which the command line shows as an error
            return 1, f"{written.getvalue()}{type(error).__name__}: {error}"
    return 0, written.getvalue()
