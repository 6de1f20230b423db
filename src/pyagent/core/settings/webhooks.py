"""The settings of webhooks: what goes out of runs, and what comes in and begins some."""

from typing import Annotated

from pyagent.core.setting_kinds import TRUTH
from pyagent.core.settings.section import Section, Setting


class Webhooks(Section, frozen=True):
    """Webhooks."""

    private: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether webhooks may be sent by http:// and to addresses that are not public: receivers of one's own "
            "network, and tests.",
        ),
    ] = False
