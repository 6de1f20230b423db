"""The settings of learning from outcomes."""

from typing import Annotated, Literal

from pyagent.core.setting_kinds import choice, number, whole
from pyagent.core.settings.section import Section, Setting


class Learning(Section, frozen=True):
    """Choosing among agents of near score by what their runs earned (`pyagent runs mark`)."""

    policy: Annotated[
        Literal["off", "ucb1", "thompson", "gaussian"],
        Setting(
            choice("off", "ucb1", "thompson", "gaussian"),
            "How an agent is chosen among those whose scores of a task are near each other: `off` takes the highest "
            "score; `ucb1`, `thompson` (marks are good or bad) and `gaussian` (marks are numbers) learn from marks of "
            "past runs.",
        ),
    ] = "off"
    margin: Annotated[
        float, Setting(number(1.0), "Difference of scores up to which agents are near each other; 0 is equal scores.")
    ] = 0.05
    seed: Annotated[
        int, Setting(whole(0), "Seed of learned choices: equal marks and an equal seed give equal choices.")
    ] = 0
