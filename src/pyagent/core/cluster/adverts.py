"""What a node tells the others of itself: what it offers, how busy it is, and which prompts it has computed lately.

Values alone. An `Offer` changes seldom and is carried by gossip; a `Load` changes with each request and goes to every
peer some times a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Literal

import msgspec

from pyagent.core.chain.settings import Price
from pyagent.core.cluster.placement import MAX_COPIES, MAX_NAME, MAX_WISHES, is_wish
from pyagent.core.messages import ModelInfo

MAX_MODELS = 256
MAX_AGENTS = 256
MAX_MEMORY_BYTES = 1 << 62
MAX_NEW_PREFIXES = 1024
"""Keys of prefixes in one `Load`; older ones are in the whole list, which a peer asks for."""


Count = Annotated[int, msgspec.Meta(ge=0)]
Measured = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Neither NaN nor infinite: with those no node is before another."""


Role = Literal["both", "prefill", "decode"]


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node answers with. `price` is USD for a million tokens; `weight` is its share of requests among equals.

    One whose `role` is `prefill` answers no chats of peers. `abilities`, `gives_several` and `continues` are what its
    own links can do, as in `Capabilities`. `placement` is how many nodes it wants to have a model;
    of the models that any node wants so, it could load the `placeable` ones and is loading the `placing` ones;
    `memory_bytes` is what its engine may use for all.
    """

    models: tuple[ModelInfo, ...] = ()
    agents: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()
    gives_several: bool = False
    continues: bool = False
    role: Role = "both"
    price: Price | None = None
    weight: float = 1.0
    placement: dict[str, int] = {}
    placeable: tuple[str, ...] = ()
    placing: tuple[str, ...] = ()
    memory_bytes: Count = 0

    def bounded(self) -> Offer:
        """Return the offer with no more in it than a peer takes: names of a sane length, so many models and agents.

        A weight or a price that is no number to reckon with counts as not told.
        """
        weight = self.weight if math.isfinite(self.weight) else 1.0
        return msgspec.structs.replace(
            self,
            models=tuple(model for model in self.models if 0 < len(model.id) <= MAX_NAME)[:MAX_MODELS],
            agents=tuple(name for name in self.agents if 0 < len(name) <= MAX_NAME)[:MAX_AGENTS],
            abilities=self.abilities[:MAX_NAME],
            price=self.price if _is_sound(self.price) else None,
            weight=min(max(weight, 0.01), 100.0),
            placement=_bounded(self.placement),
            placeable=_names(self.placeable),
            placing=_names(self.placing),
            memory_bytes=min(self.memory_bytes, MAX_MEMORY_BYTES),
        )


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How busy a node is. `sequence` counts its loads since it started; a peer drops older ones.

    `num_waiting` requests queue for its engine or for a model that loads, `num_running` are computed, or wait for KV
    from elsewhere, and `num_free` more would begin at once; `num_prompt_tokens_left` of their prompts are not computed
    yet;
    `prefill_tokens_per_second`, `requests_per_second` (of those answered), `first_token_seconds` (p50) and
    `answer_seconds` (from there to the end) are what it measured. `is_draining`: it takes no new requests.
    `new_prefixes` are the keys (`prefixes.prefix_keys`) that it computed since its last load, 8 bytes each.
    """

    sequence: int
    num_running: Count = 0
    num_waiting: Count = 0
    num_free: Count = 0
    num_prompt_tokens_left: Count = 0
    prefill_tokens_per_second: Measured = 0.0
    requests_per_second: Measured = 0.0
    answer_seconds: Measured = 0.0
    first_token_seconds: Measured = 0.0
    free_kv_pages: Count = 0
    is_draining: bool = False
    new_prefixes: bytes = b""


def _bounded(wishes: dict[str, int]) -> dict[str, int]:
    return {model: min(wishes[model], MAX_COPIES) for model in _names(wishes) if wishes[model] > 0}


def _names(models: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(filter(is_wish, models), MAX_WISHES))


def _is_sound(price: Price | None) -> bool:
    return price is not None and all(math.isfinite(usd) and usd >= 0 for usd in (price.input, price.output))


NOTHING = Offer()
"""The offer of a node that has told none yet, or offers nothing."""
IDLE = Load(sequence=0)
"""The load of a node that has told none yet."""
