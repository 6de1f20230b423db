"""What every backend must do, the command backend does: the suite is PyAgent's, the subject is ours."""

from collections.abc import Generator
from contextlib import contextmanager

from pyagent_command import CommandBackend

from pyagent.plugin import LinkSpec
from pyagent.testing import BackendConformance, Subject


class TestCommand(BackendConformance):
    @contextmanager
    def subject(self) -> Generator[Subject]:
        yield Subject(
            lambda: CommandBackend(LinkSpec("command", "cat")),
            scheme="command",
            make_down=lambda: CommandBackend(LinkSpec("command", "no-such-program")),
            unknown_model=None,
        )
