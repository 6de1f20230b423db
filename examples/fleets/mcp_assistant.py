"""An assistant whose only tools are those of an MCP server: it looks by itself, and asks you before it changes things.

python examples/fleets/mcp_assistant.py "How much flour is there?"
python examples/fleets/mcp_assistant.py "Take 100 grams of sugar." --allow
python examples/fleets/mcp_assistant.py "What did I write about the harvest?" --server files

Without `--server` it starts a small server of its own, a pantry. Others are those of your `pyagent.toml`, by name. What
a server says of its tools is believed of the pantry only (`trust`): of others each call asks, unless you trust them.
Needs the package `mcp`.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from pyagent import (
    Backend,
    Fleet,
    PyAgentError,
    Question,
    QuestionAsked,
    RequestError,
    Settings,
    Task,
    follow,
    load_settings,
)

PANTRY = Path(__file__).parent / "samples" / "pantry_server.py"
LIMITS = {"budget.run.tokens": 30_000, "budget.run.seconds": 300}
STARTUP_SECONDS = 60
SYSTEM = "Use the tools to find out. Answer in one sentence, with what the tools said."
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "minLength": 1, "maxLength": 160}},
    "required": ["answer"],
    "additionalProperties": False,
}


class Assisted(msgspec.Struct, frozen=True):
    """The answer, and the calls that it rests on."""

    output: dict[str, str]
    calls: list[str] = []

    def __str__(self) -> str:
        return "\n".join([self.output["answer"], *(f"  {call}" for call in self.calls)])


def settings_for(server: str, stock: Path) -> Settings:
    """Return the settings with the server: the pantry is started here, others stand in pyagent.toml."""
    overrides: dict[str, object] = dict(LIMITS)
    if server == "pantry":
        pantry: dict[str, object] = {
            "command": sys.executable,
            "args": [str(PANTRY), str(stock.resolve())],
            "trust": "annotations",
        }
        pantry["startup_seconds"] = STARTUP_SECONDS
        overrides["mcp_servers"] = {"pantry": pantry}
    settings = load_settings(overrides=overrides).settings
    if server not in settings.mcp_servers:
        known = ", ".join(settings.mcp_servers) or "none"
        sys.exit(f"mcp_assistant: pyagent.toml has no [mcp_servers.{server}]; it has {known}")
    return settings


async def answered(
    fleet: Fleet, events: AsyncGenerator[Any, None], answer: Callable[[Question], str]
) -> AsyncGenerator[Any, None]:
    """Pass a run's events on, and answer its questions."""
    async with aclosing(events):
        async for event in events:
            yield event
            if isinstance(event, QuestionAsked):
                fleet.answer(event.run, event.question.id, await asyncio.to_thread(answer, event.question))


def ask_at_terminal(question: Question) -> str:
    """Return what the person says: one of the options, else no."""
    said = input(f"  {' / '.join(question.options)}? ").strip().lower()
    return said if said in question.options else "deny"


async def main(
    question: str, settings: Settings, answer: Callable[[Question], str], server: str, backend: Backend | None = None
) -> Assisted:
    gives_up_at = time.monotonic() + STARTUP_SECONDS
    task = Task(
        text=question,
        arguments={
            "tools": [f"{server}__*"],
            "steps": 2,
            "max_tokens": 160,
            "must_call": True,
            "system": SYSTEM,
            "output": ANSWER,
        },
    )
    async with Fleet(settings, backend=backend, agents=["assistant"]) as fleet:
        while True:
            events = fleet.run(task, agent="assistant", waits_for_answers=True)
            try:
                assisted = await follow(answered(fleet, events, answer))
            except RequestError as error:
                if error.param != "tools" or time.monotonic() > gives_up_at:
                    raise
                print("  the server is still starting; once more")
                await asyncio.sleep(3)
            else:
                return msgspec.convert(msgspec.to_builtins(assisted), Assisted)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Do a task with the tools of an MCP server.")
    options.add_argument("question", nargs="?", default="How much flour is there?")
    options.add_argument("--server", default="pantry", help="a server of pyagent.toml; a pantry if not given")
    options.add_argument("--stock", type=Path, default=Path("pantry.json"), help="the pantry's file")
    options.add_argument("--allow", action="store_true", help="allow every call")
    given = options.parse_args()
    is_asked = sys.stdin.isatty() and not given.allow
    choose = ask_at_terminal if is_asked else lambda _: "allow" if given.allow else "deny"
    try:
        print(asyncio.run(main(given.question, settings_for(given.server, given.stock), choose, given.server)))
    except PyAgentError as error:
        sys.exit(f"mcp_assistant: {error}")
