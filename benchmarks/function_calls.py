"""Function calls of small models, beside llama.cpp's server: do they follow their schemas, are they the right ones.

    .venv/bin/python benchmarks/function_calls.py [FILE.gguf ...] [--bfcl FOLDER] [--peer PYTHON]

Cases of the Berkeley Function Calling Leaderboard (`bfcl_cases.py`) are asked over HTTP by the `openai` client, at
temperature 0, some at once, with `tool_choice` "required" and "auto". Arguments are validated by `jsonschema`; whether
they are right says the leaderboard's own checker. PyAgent is asked again in a stream, whose joined pieces must equal
the whole; with `parallel_tool_calls` false; and for a second turn, with results of the calls. llama.cpp's server tells
a model without tools in its template nothing of them: it gets the template with the words that PyAgent uses.
`make function-calls` installs what this needs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from bfcl_cases import CATEGORIES, Case, Leaderboard
from function_call_client import Asked, Client
from function_call_tables import print_checks, print_table
from peers import NUM_THREADS, Server, llama_cpp_server, pyagent_server
from quiet import machine
from tool_templates import GEMMA3, telling_tools, template_of, with_template

from pyagent.core.settings import Settings
from pyagent.infrastructure.models.store import ModelStore

ROOT = Path(__file__).parents[1]
CONTEXT = 4096


def llama_cpp(arguments: argparse.Namespace, model: Path, folder: Path) -> Server:
    """llama.cpp's server, with a template that says what PyAgent says."""
    template = folder / "template.jinja"
    template.write_text(telling_tools(template_of(model) or ""))
    slots, threads = arguments.at_once, arguments.peer_threads
    return llama_cpp_server(arguments.peer, model, template, context=CONTEXT, slots=slots, threads=threads)


def asked(arguments: argparse.Namespace, server: Server, cases: list[Case], choice: str) -> Asked:
    """All replies to the cases."""
    client = Client(server.url, arguments.max_tokens, arguments.at_once, arguments.dry)
    return asyncio.run(client.ask(cases, tool_choice=choice))


def checked(arguments: argparse.Namespace, server: Server, cases: list[Case], required: Asked) -> None:
    """Ask PyAgent for what else must hold, and print how often it did."""
    client = Client(server.url, arguments.max_tokens, arguments.at_once, arguments.dry)
    streamed = asyncio.run(client.ask(cases, tool_choice="required", stream=True))
    single = asyncio.run(client.ask(cases, tool_choice="required", parallel_tool_calls=False))
    second = asyncio.run(client.ask_again(cases, required))
    print_checks(required, streamed, single, second)


def of_file(arguments: argparse.Namespace, board: Leaderboard, file: Path) -> None:
    """Measure one model file with both engines."""
    cases = board.cases(arguments.cases // len(CATEGORIES))
    peer_cases = board.cases(arguments.peer_cases // len(CATEGORIES))
    print(
        f"\n{file.name}, {len(cases)} cases, max_tokens {arguments.max_tokens}, DRY {arguments.dry:g}; {machine()}\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        model = file if template_of(file) else with_template(file, GEMMA3, Path(folder))
        rows: list[tuple[str, str, list[Case], Asked]] = []
        with pyagent_server(model, context=CONTEXT) as server:
            rows += [("pyagent", one, cases, asked(arguments, server, cases, one)) for one in arguments.tool_choice]
            print_table(board, rows)
            if rows[0][1] == "required":
                checked(arguments, server, cases, rows[0][3])
        if arguments.peer.exists() and peer_cases:
            with llama_cpp(arguments, model, Path(folder)) as server:
                for choice in arguments.tool_choice:
                    rows.append(("llama.cpp", choice, peer_cases, asked(arguments, server, peer_cases, choice)))
            print_table(board, rows)
        else:
            print(f"llama.cpp is left out: {arguments.peer} is not there", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="model files; smollm2:135m without any")
    parser.add_argument("--bfcl", type=Path, help="folder of the package bfcl_eval")
    parser.add_argument("--peer", type=Path, default=ROOT / ".peers/bin/python", help="a Python with xllamacpp")
    parser.add_argument("--tool-choice", nargs="+", default=["required", "auto"])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--peer-cases", type=int, help="of llama.cpp; as many without it")
    parser.add_argument("--peer-threads", type=int, default=NUM_THREADS, help="1 where the machine is busy")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--dry", type=float, default=0.0, help="dry_multiplier of both: small models repeat themselves")
    arguments = parser.parse_args()
    if arguments.peer_cases is None:
        arguments.peer_cases = arguments.cases
    found = next((ROOT / ".peers").glob("lib/python*/site-packages/bfcl_eval"), ROOT / ".peers/bfcl_eval")
    board = Leaderboard(arguments.bfcl or found)
    for file in arguments.files or [ModelStore(Settings().paths.models).locate("smollm2:135m")]:
        of_file(arguments, board, file)


if __name__ == "__main__":
    main()
