"""The settings of the program: its plugins, folders and log."""

from pathlib import Path
from typing import Annotated, Literal

import platformdirs

from pyagent.core.setting_kinds import PATH, SIZE, TABLES, TEXTS, choice, number
from pyagent.core.settings.section import Section, Setting


class Plugins(Section, frozen=True):
    """Which plugins are used."""

    disable: Annotated[
        list[str], Setting(TEXTS, "Plugins to disable, by the names that `pyagent plugins list` shows.")
    ] = []
    order: Annotated[
        list[str],
        Setting(TEXTS, "Plugins that take precedence, over built-in ones too, when several register the same name."),
    ] = []
    load_seconds: Annotated[
        float,
        Setting(
            number(86_400.0),
            "Seconds that a plugin may take to import, and to answer a hook; then it is left out, and named.",
        ),
    ] = 60.0
    isolate: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Plugins whose agents and tools run in processes of their own, with the files, network, tools and agents "
            "that each plugin declares.",
        ),
    ] = []
    isolated_seconds: Annotated[
        float, Setting(number(86_400.0), "Seconds that an agent or a tool of an isolated plugin may take.")
    ] = 300.0
    isolated_memory: Annotated[
        int, Setting(SIZE, "Memory that the process of an isolated plugin may take, its interpreter included.")
    ] = 2_000_000_000
    options: Annotated[
        dict[str, dict[str, object]],
        Setting(TABLES, "Options of a plugin, which its own page names; written as a table `[plugins.NAME]`."),
    ] = {}


class Paths(Section, frozen=True):
    """Where files are kept."""

    models: Annotated[
        Path,
        Setting(
            PATH,
            "Folder of the downloaded models; files that lie there have names, too.",
            shown="the user's data folder, `pyagent/models`",
        ),
    ] = platformdirs.user_data_path("pyagent", appauthor=False) / "models"
    data: Annotated[
        Path, Setting(PATH, "Folder of the journals of past runs.", shown="the user's data folder, `pyagent`")
    ] = platformdirs.user_data_path("pyagent", appauthor=False)


class Log(Section, frozen=True):
    """Logging, always to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting(choice("debug", "info", "warning", "error"), "Lowest severity of the messages that are logged."),
    ] = "warning"
    format: Annotated[
        Literal["console", "json"],
        Setting(choice("console", "json"), "Log format: lines for people, or one JSON object a line."),
    ] = "console"
