"""`pyagent agent`: one agent, without the router. Without a name it lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Chain, Config, Files, Model
from pyagent.cli.startup import read_settings

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent, Task

app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def agent(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The agent; without one they are listed.")] = None,
    file: Files = None,
    chain: Chain = None,
    model: Model = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Give a task to one agent: the words that follow its name, and its own options as --key value."""
    import asyncio

    from pyagent.cli.files import checked_files
    from pyagent.cli.progress import as_json as json_of
    from pyagent.cli.run import watch
    from pyagent.core.fleet.agent import unknown_name
    from pyagent.fleet import Fleet

    settings = read_settings(config, chain, model)
    files = checked_files(file or [])

    async def work() -> None:
        async with Fleet(settings) as fleet:
            if name is None:
                _list(list(fleet.agents.values()), as_json=as_json)
                return
            if name not in fleet.agents:
                raise unknown_name("agent", name, list(fleet.agents))
            task = task_of(fleet.agents[name], context.args, files)
            if as_json:
                output = await fleet.run_agent(name, task)
                sys.stdout.write(json_of(output).decode() + "\n")
                return
            from pyagent.core.fleet.orchestrator import Step

            await watch(fleet, [Step(name=name, agent=name, task=task)])

    asyncio.run(work())


def _list(agents: Sequence[Agent], *, as_json: bool) -> None:
    """The agents, with what each takes."""
    import msgspec

    from pyagent.core.fleet.agent import describe

    if as_json:
        sys.stdout.write(msgspec.json.encode([describe(agent) for agent in agents]).decode() + "\n")
        return
    width = max((len(agent.name) for agent in agents), default=0)
    for agent in agents:
        sys.stdout.write(f"{agent.name:<{width}}  {agent.description}\n")


def task_of(agent: Agent, words: Sequence[str], files: Sequence[str]) -> Task:
    """The task that the words after an agent's name mean: its text, and its options as arguments."""
    from pyagent.core.errors import RequestError
    from pyagent.core.fleet.agent import Task, arguments_type

    text: list[str] = []
    options: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--") or word == "--":
            text.append(word)
            continue
        key, has_value, value = word[2:].partition("=")
        if not has_value:
            value = next(rest, None)
            if value is None:
                raise RequestError(f"the option {word} needs a value", param=key)
        options[key.replace("-", "_")] = _value(value)
    if options and arguments_type(agent) is None:
        raise RequestError(f"{agent.name} takes no options, got --{next(iter(options))}", param="arguments")
    return Task(text=" ".join(text), files=tuple(files), arguments=options)


def _value(text: str) -> object:
    """A number, true, false, a list or an object where the text is JSON for one; else the text."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
