"""What the settings say to one plugin: its table `[plugins.NAME]`, read as the struct that the plugin has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from pyagent.core.errors import ConfigError
from pyagent.core.field_errors import field_error

if TYPE_CHECKING:
    from pyagent.core.settings import Settings

T = TypeVar("T", bound=msgspec.Struct)


def plugin_options(settings: Settings, plugin: str, kind: type[T]) -> T:
    """Return the options of a plugin; raises `ConfigError` naming the one at fault."""
    try:
        return msgspec.convert(settings.plugins.options.get(plugin, {}), kind, strict=False)
    except msgspec.ValidationError as error:
        text = f"plugins.{plugin}: {field_error(error, kind)}"
        raise ConfigError(text, key=f"plugins.{plugin}") from error
