"""What a table of settings is, and what a setting says of itself. Knows no setting."""

from typing import Annotated, get_origin

import msgspec

from pyagent.core.setting_kinds import Kind, or_word

ENV_PREFIX = "PYAGENT_"


class Setting(msgspec.Struct, frozen=True):
    """How a setting is read, what it means. `none` is the word for None; `shown` stands for a default that varies."""

    kind: Kind
    meaning: str
    none: str = ""
    shown: str = ""

    def read(self, value: object) -> object:
        """Return the value as the model has it; raises `ValueError` saying what is expected."""
        return (or_word(self.kind, self.none) if self.none else self.kind).read(value)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of settings."""


def auto(kind: Kind, meaning: str) -> Setting:
    """Return a setting whose default the program finds out."""
    return Setting(kind, meaning, none="auto")


def sections_in(section: type[Section]) -> dict[str, type[Section]]:
    """Return the tables that stand in a table, by name."""
    return {name: kind for name, kind in section.__annotations__.items() if isinstance(kind, type)}


def settings_in(section: type[Section]) -> dict[str, Setting]:
    """Return the settings of a table itself, by name."""
    annotations = section.__annotations__.items()
    return {name: kind.__metadata__[0] for name, kind in annotations if get_origin(kind) is Annotated}
