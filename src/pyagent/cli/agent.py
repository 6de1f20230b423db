"""`pyagent agent`: one agent, without the router. Without a name it lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Chain, Config, Files, Model, Private, Seconds
from pyagent.cli.startup import PlainFetchProgress, fetches_shown, read_settings

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent

app = typer.Typer(add_completion=False)


def _agent_names(incomplete: str) -> list[str]:
    """Return the names of agents for the shell to complete."""
    from pyagent.assembly import make_agents, make_host

    settings = read_settings()
    return [name for name in make_agents(settings, make_host(settings)) if name.startswith(incomplete)]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def agent(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="The agent; without one they are listed.", autocompletion=_agent_names),
    ] = None,
    file: Files = None,
    chain: Chain = None,
    model: Model = None,
    private: Private = False,
    seconds: Seconds = None,
    as_json: AsJson = False,
    config: Config = None,
    help: Annotated[bool, typer.Option("--help", "-h", help="Show this, or an agent's own options.")] = False,  # noqa: A002
) -> None:
    """Give a task to one agent: the words that follow its name, and its own options as --key value.

    `pyagent agent NAME --help` lists them. Without words the task is read from standard input.
    """

    from pyagent.assembly import make_agents, make_host
    from pyagent.cli.agent_options import help_of, task_of
    from pyagent.cli.event_loop import run_to_end
    from pyagent.cli.input import readable_files
    from pyagent.cli.output import write_json_line
    from pyagent.cli.progress import as_json as json_of
    from pyagent.cli.run import watch
    from pyagent.core.fleet.agent import unknown_name
    from pyagent.core.fleet.steps import Step
    from pyagent.fleet import Fleet

    if name is None and help:
        typer.echo(context.get_help())
        return
    settings = read_settings(config, chain, model)
    host = make_host(settings)
    agents = make_agents(settings, host)
    if name is None:
        _list(list(agents.values()), as_json=as_json)
        return
    if name not in agents:
        raise unknown_name("agent", name, list(agents))
    if help:
        typer.echo(f"{help_of(agents[name])}\n{_shared_options(context)}")
        return
    with readable_files(file or []) as files:
        task = task_of(agents[name], context.args, files)

        async def work() -> None:
            async with Fleet(settings, host=host) as fleet:
                if as_json:
                    with fetches_shown(PlainFetchProgress("the agent asks a model; this happens once").show):
                        output = await fleet.run_agent(name, task, timeout_seconds=seconds, is_private=private)
                    write_json_line(json_of(output))
                    return
                step = Step(name=name, agent=name, task=task)
                await watch(fleet, [step], timeout_seconds=seconds, is_private=private)

        run_to_end(work())


def _shared_options(context: typer.Context) -> str:
    """Return the part of the help that all agents have in common."""
    _, _, options = context.get_help().partition("Options:\n")
    return f"\nOptions of every agent:\n{options}"


def _list(agents: Sequence[Agent], *, as_json: bool) -> None:
    """Write the agents, with what each takes."""
    from pyagent.cli.output import write_json
    from pyagent.core.fleet.agent import describe

    if as_json:
        write_json([describe(agent) for agent in agents])
        return
    width = max((len(agent.name) for agent in agents), default=0)
    for agent in agents:
        sys.stdout.write(f"{agent.name:<{width}}  {agent.description}\n")
