"""The eviction policies of the block pool: the built-in ones as a plugin, and the setting that picks one.

The built-in policies are Rust and made by name; what a plugin brings may be written in Python. Nothing here knows in
which order a policy gives blocks up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyagent import _rust
from pyagent.core.errors import ConfigError, PyAgentError
from pyagent.core.eviction import EvictionPolicy, EvictionPolicyFactory
from pyagent.core.hooks import hookimpl
from pyagent.core.nearest import did_you_mean

DEFAULT = "lru"
_NAMES = (DEFAULT, "lfu", "fifo", "arc", "slru", "tlru", "priority")


def _named(name: str) -> EvictionPolicyFactory:
    def make(num_pages: int) -> str:
        return name

    return make


BUILT_IN: Mapping[str, EvictionPolicyFactory] = {name: _named(name) for name in _NAMES}


@hookimpl
def pyagent_register_eviction_policies() -> Mapping[str, EvictionPolicyFactory]:
    """Least recently and least frequently used, first in first out, ARC, segmented and tail-optimised LRU, priority."""
    return BUILT_IN


def pick_eviction(name: str, factories: Mapping[str, EvictionPolicyFactory] = BUILT_IN) -> EvictionPolicyFactory:
    """Return the maker of the policy that the settings name. Raises `ConfigError`.

    The default is there even when the plugin that brings the policies is disabled.
    """
    factories = {DEFAULT: BUILT_IN[DEFAULT], **factories}
    factory = factories.get(name)
    if factory is None:
        hint = did_you_mean(name, factories, f"there are {', '.join(sorted(factories))}")
        raise ConfigError(f"engine.eviction: no plugin brings the policy {name!r}; {hint}", key="engine.eviction")
    return factory


def make_pool(
    num_pages: int,
    groups: Sequence[tuple[str, int, int]],
    make_eviction: EvictionPolicyFactory,
    prefix_hash: str = "siphash",
) -> _rust.BlockPool:
    """Return a block pool with a policy of its own. Raises `ConfigError` when the policy cannot be made."""
    try:
        policy: EvictionPolicy | str = make_eviction(num_pages)
        return _rust.BlockPool(num_pages, groups=groups, eviction=policy, prefix_hash=prefix_hash)
    except PyAgentError:
        raise
    except Exception as error:
        raise ConfigError(f"engine.eviction: the policy cannot be made: {error}", key="engine.eviction") from error
