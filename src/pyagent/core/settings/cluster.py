"""The settings of a node of a cluster: where it listens, how it finds the others, what it gives to them."""

from typing import Annotated, Literal

import msgspec

from pyagent.core.cluster.addresses import ADDRESSES, DEFAULT_PORT, DOORS
from pyagent.core.cluster.placement import MAX_COPIES, MAX_NAME, MAX_WISHES
from pyagent.core.setting_kinds import NUMBER, TEXT, TEXTS, TRUTH, choice, counts, whole
from pyagent.core.settings.section import Section, Setting


class Cluster(Section, frozen=True):
    """The cluster that this node belongs to: where it listens, and how it finds the others."""

    name: Annotated[
        str | None, Setting(TEXT, "What other nodes show this one as; `auto` is the host's name.", none="auto")
    ] = None
    bind: Annotated[
        list[str],
        Setting(ADDRESSES, "Addresses that `pyagent node` listens on; the default is every interface of the machine."),
    ] = msgspec.field(default_factory=lambda: ["0.0.0.0", "::"])  # noqa: S104 - a node is asked to be reachable
    port: Annotated[
        int, Setting(whole(0, 65535), "Port of the door, where nodes prove that they belong together; 0 is a free one.")
    ] = DEFAULT_PORT
    seeds: Annotated[
        list[str],
        Setting(DOORS, "Doors of nodes to knock at besides those that are found: `host` or `host:port`."),
    ] = []
    multicast: Annotated[
        bool, Setting(TRUTH, "Whether nodes are looked for, and this one is announced, by multicast DNS.")
    ] = True
    routing: Annotated[
        Literal["prefix", "power_of_two", "least_requests", "round_robin", "cost"],
        Setting(
            choice("prefix", "power_of_two", "least_requests", "round_robin", "cost"),
            "How a request is given to this node's engine or a peer: by the estimated time to the first token, with "
            "prompts computed before counted (`prefix`), the less busy of two random ones, the fewest requests, in "
            "turns, or the lowest price.",
        ),
    ] = "prefix"
    steal: Annotated[
        bool, Setting(TRUTH, "Whether requests that wait in this node's engine are given to peers without a queue.")
    ] = True
    offer: Annotated[
        list[str] | None,
        Setting(
            TEXTS,
            "What peers may use: links of the chain by scheme or name, and `agents`; `auto` is the embedded engine, "
            "Ollama and LM Studio on this machine, and the agents.",
            none="auto",
        ),
    ] = None
    placement: Annotated[
        dict[str, int],
        Setting(
            counts(MAX_WISHES, MAX_COPIES, MAX_NAME),
            'How many nodes shall have a model loaded, as `{ "MODEL" = 2 }`, among those that name it in '
            "`engine.models`; where nodes differ, the largest number holds.",
        ),
    ] = {}
    placement_delay_seconds: Annotated[
        float,
        Setting(
            NUMBER,
            "How long too few nodes must have a model of `placement` before this one loads it; longer than a node "
            "takes to start anew.",
        ),
    ] = 10.0
    role: Annotated[
        Literal["both", "prefill", "decode"],
        Setting(
            choice("both", "prefill", "decode"),
            "What this node computes: `decode` has long prompts computed by nodes that are `prefill`, which answer no "
            "requests of peers, and fetches their KV; `both` computes prompts and answers.",
        ),
    ] = "both"
    weight: Annotated[
        float, Setting(NUMBER, "This node's share of requests among equals: 2 gets twice as many as 1.")
    ] = 1.0
    usd_per_million_tokens: Annotated[
        float | None,
        Setting(NUMBER, "What tokens computed here cost, for `routing = cost`, or `nothing`.", none="nothing"),
    ] = None
