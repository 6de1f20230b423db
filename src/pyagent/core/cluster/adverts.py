"""What a node tells the others of itself: what it offers, how busy it is, and which prompts it has computed lately.

Values alone. An `Offer` changes seldom and is carried by gossip; a `Load` changes with each request and goes to every
peer some times a second.
"""

from __future__ import annotations

import msgspec

from pyagent.core.chain.settings import Price
from pyagent.core.messages import ModelInfo

MAX_MODELS = 256
MAX_AGENTS = 256
MAX_NAME = 200
MAX_NEW_PREFIXES = 1024
"""Keys of prefixes in one `Load`; older ones are in the whole list, which a peer asks for."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node answers with. `price` is USD for a million tokens; `weight` is its share of requests among equals.

    `abilities`, `gives_several` and `continues` are what its own links can do, as in `Capabilities`.
    """

    models: tuple[ModelInfo, ...] = ()
    agents: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()
    gives_several: bool = False
    continues: bool = False
    price: Price | None = None
    weight: float = 1.0

    def bounded(self) -> Offer:
        """Return the offer with no more in it than a peer takes: names of a sane length, so many models and agents."""
        return msgspec.structs.replace(
            self,
            models=tuple(model for model in self.models if 0 < len(model.id) <= MAX_NAME)[:MAX_MODELS],
            agents=tuple(name for name in self.agents if 0 < len(name) <= MAX_NAME)[:MAX_AGENTS],
            abilities=self.abilities[:MAX_NAME],
            weight=min(max(self.weight, 0.01), 100.0),
        )


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How busy a node is. `sequence` counts its loads since it started; a peer drops older ones.

    `num_waiting` requests queue for its engine and `num_running` are computed; `prefill_tokens_per_second` and
    `first_token_seconds` (p50) are what it measured. `is_draining`: it takes no new requests. `new_prefixes` are the
    keys (`prefixes.prefix_keys`) that it computed since its last load, 8 bytes each.
    """

    sequence: int
    num_running: int = 0
    num_waiting: int = 0
    prefill_tokens_per_second: float = 0.0
    first_token_seconds: float = 0.0
    free_kv_pages: int = 0
    is_draining: bool = False
    new_prefixes: bytes = b""


NOTHING = Offer()
"""The offer of a node that has told none yet, or offers nothing."""
IDLE = Load(sequence=0)
"""The load of a node that has told none yet."""
