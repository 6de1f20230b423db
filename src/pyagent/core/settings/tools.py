"""The settings of the built-in tools: which there are, and what they may do."""

from pathlib import Path
from typing import Annotated, Literal

from pyagent.core.setting_kinds import NUMBER, PATH, SIZE, TEXT, TEXTS, TRUTH, choice
from pyagent.core.settings.section import Section, Setting


class Tools(Section, frozen=True):
    """The built-in tools of agents, for files, programs and pages."""

    root: Annotated[
        Path, Setting(PATH, "Folder below which the tools for files, and the shell's commands, work.", shown=".")
    ] = Path()
    files: Annotated[
        Literal["off", "read", "write"],
        Setting(
            choice("off", "read", "write"),
            "Tools for files: none, those that read, or also those that change files, which ask a person first. A "
            "client of a server reads below `server.files_root` and changes nothing.",
        ),
    ] = "write"
    shell: Annotated[
        bool,
        Setting(TRUTH, "Whether agents may run shell commands, each allowed by a person; never for a client."),
    ] = False
    python: Annotated[
        bool,
        Setting(TRUTH, "Whether agents may run Python programs, each allowed by a person; never for a client."),
    ] = False
    changes: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether agents may propose patches (`propose_change`), each allowed by a person, and kept when checks in "
            "a copy pass; never for a client. Needs `tools.files = write`.",
        ),
    ] = False
    change_test: Annotated[
        str, Setting(TEXT, "Shell command that has to pass in the copy before a proposed patch is kept.")
    ] = ""
    protect: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Files and folders, by name or path, that no proposed patch changes (`tests`, `*.toml`); `pyagent.toml` "
            "and `.git` always.",
        ),
    ] = []
    network: Annotated[bool, Setting(TRUTH, "Whether programs that agents run may use the network.")] = False
    seconds: Annotated[float, Setting(NUMBER, "Seconds that a program run by an agent may take.")] = 60.0
    memory: Annotated[int, Setting(SIZE, "Memory that a program run by an agent may take.", shown="1GiB")] = 1 << 30
    http_hosts: Annotated[
        list[str],
        Setting(TEXTS, "Hosts whose pages the tool `http_get` may read (`example.org`, `*.example.org`, `*`)."),
    ] = []
    http_private: Annotated[
        bool, Setting(TRUTH, "Whether `http_get` may connect to addresses that are not public, of the allowed hosts.")
    ] = False
    approved: Annotated[
        list[str],
        Setting(TEXTS, "Tools that run without a person's approval, by their names; `*` is all."),
    ] = []
