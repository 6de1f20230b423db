"""`CallMode`: what modes that read a call have in common. Each part of a call is read by a method of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyagent.core.dialects.output import Output
from pyagent.core.dialects.source import Source
from pyagent.core.dialects.text import Context, Mode, TextMode

Part = Callable[[Source, Output], Mode | bool]
"""Reads a part: returns the mode that goes on, or whether this one does; it waits for more text where not."""


@dataclass(slots=True)
class CallMode:
    """A call being read. `raw` is what becomes text if it is none; `part` reads what comes next."""

    context: Context
    raw: list[str]
    name: str = field(default="", init=False)
    has_call: bool = field(default=False, init=False)
    part: Part = field(init=False, repr=False)

    def step(self, source: Source, output: Output) -> Mode | None:
        """Read on."""
        while True:
            mode = self.part(source, output)
            if not isinstance(mode, bool):
                return mode
            if not mode:
                return None

    def go(self, part: Part) -> bool:
        """Go on with a part."""
        self.part = part
        return True

    def begin(self, name: str, output: Output) -> None:
        """Begin the call of this name: what comes is no text any more."""
        self.name, self.has_call = name, True
        self.raw.clear()
        output.pass_tag()
        output.begin_call(name)

    def end_arguments(self, output: Output) -> None:
        """End the call, whatever of it has come."""
        output.end_call()

    def end(self, source: Source, output: Output) -> None:
        """End with the answer: a call ends, or stays as far as it came where that is cut; what is none yet is text."""
        if not self.name:
            output.content.write("".join(self.raw) + source.take_rest())
        elif source.is_cut:
            self.cut(output)
        else:
            self.end_arguments(output)

    def cut(self, output: Output) -> None:
        """Give out what is known of the arguments."""

    def fail(self, output: Output) -> Mode:
        """Leave the rest to the text: after a call as far as it came, or with what is none."""
        if self.name:
            self.end_arguments(output)
        else:
            output.content.write("".join(self.raw))
        return TextMode(self.context, closers=self.context.closers if self.has_call else ())
