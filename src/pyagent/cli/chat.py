"""`pyagent chat`: a conversation with the default chain, or with an agent.

The prompt is there at once: the model loads in the background while the first line is typed. Answers are computed in an
event loop in a thread of its own, so that Ctrl+C in the main thread stops the answer and not the program.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.answer_form import Choice, Grammar, Regex, Schema, answer_form
from pyagent.cli.load_line import loads_shown
from pyagent.cli.options import Chain, Config, Model
from pyagent.cli.output import for_terminal
from pyagent.cli.startup import fetch_first_model, read_settings
from pyagent.core.loop_thread import LoopThread
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.cli.conversation import Conversation

app = typer.Typer(add_completion=False)


@app.command()
def chat(
    chain: Chain = None,
    model: Model = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the last conversation.")] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Only backends that stay on this machine; keeps nothing.")
    ] = False,
    schema: Schema = None,
    regex: Regex = None,
    choice: Choice = None,
    grammar: Grammar = None,
    config: Config = None,
) -> None:
    """Talk to the default chain; /help lists what can be said to the program itself."""
    from pyagent.cli.chat_input import Prompt
    from pyagent.cli.conversation import Conversation

    form = answer_form(schema, regex, choice, grammar)
    settings = read_settings(config, chain, model)
    fetch_first_model(settings)
    prompt = Prompt()
    with Loop("pyagent-chat") as loop:
        talk = Conversation(settings, loop, is_private=private, shows_usage=prompt.is_terminal, response_format=form)
        try:
            if go_on:
                talk.resume()
            if system or not go_on:
                talk.forget(system)
            talk.connect()
            while _take_one(talk, prompt.read, is_terminal=prompt.is_terminal):
                pass
        finally:
            talk.close()


def _take_one(talk: Conversation, read: Callable[[], str], *, is_terminal: bool) -> bool:
    """Read a message and do what it says; False at the end. On a terminal an error ends its answer only."""
    from pyagent.core.errors import PyAgentError

    try:
        with loads_shown(lambda _: None):  # nothing is written where a person types
            text = read()
    except EOFError:
        return False
    except KeyboardInterrupt:
        sys.stdout.write("\n(/quit or Ctrl+D leaves)\n")
        return True
    if text in {"/quit", "/exit", "/bye"}:
        return False
    try:
        if text:
            talk.take(text)
    except KeyboardInterrupt:
        sys.stdout.write("\n(stopped)\n")
    except PyAgentError as error:
        if not is_terminal:
            raise
        sys.stderr.write(f"error: {printable(' '.join(str(error).split()))}\n")
    return True


class Loop(LoopThread):
    """Where answers are computed."""

    def stream(self, pieces: AsyncGenerator[str, None]) -> None:
        """Write pieces as they come; Ctrl+C closes their source, and is raised once that is done."""
        for piece in self.iterate(pieces):
            sys.stdout.write(for_terminal(piece))
            sys.stdout.flush()
