"""The settings of runs that get nowhere: when they are ended."""

from typing import Annotated

from pyagent.core.setting_kinds import COUNT
from pyagent.core.settings.section import Section, Setting


class Stalls(Section, frozen=True):
    """When a run that gets nowhere is ended."""

    repeats: Annotated[
        int | None,
        Setting(
            COUNT,
            "Answers of models in a row that only repeat earlier ones to the same questions, while nothing else in the "
            "run is new, after which it is ended; or `unlimited`.",
            none="unlimited",
        ),
    ] = 30
    scores: Annotated[
        int | None,
        Setting(
            COUNT,
            "Scores in a row that an agent reports (`context.report`) without a better one and without a rise, after "
            "which the run is ended; or `unlimited`.",
            none="unlimited",
        ),
    ] = 30
