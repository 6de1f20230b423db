"""The settings of the fallback chain: rules for all links, the response cache, what remote backends share."""

from typing import Annotated, Literal

import msgspec

from pyagent.core.messages import Unsupported
from pyagent.core.setting_kinds import NUMBER, REFERENCES, SIZE, TEXTS, TRUTH, choice, whole
from pyagent.core.settings.section import Section, Setting


class Rules(Section, frozen=True):
    """Rules for all links of the chain: privacy, deadline, retries, spend limits."""

    private: Annotated[
        list[str],
        Setting(TEXTS, "Backend schemes or whole links that may answer requests marked private; a node as `peer:ID`."),
    ] = msgspec.field(default_factory=lambda: ["native"])
    deadline_seconds: Annotated[
        float | None,
        Setting(
            NUMBER,
            "Longest time in seconds for a request over all links; `never` leaves it to the caller.",
            none="never",
        ),
    ] = None
    routing: Annotated[
        Literal["round_robin", "least_requests", "power_of_two", "latency", "cost"],
        Setting(
            choice("round_robin", "least_requests", "power_of_two", "latency", "cost"),
            "Load balancing: how neighbours with a `weight` share requests: in turns, to the one with the fewest under "
            "way, to the less busy of two chosen at random, by how quick their first tokens are, or to the cheapest.",
        ),
    ] = "round_robin"
    retries: Annotated[int, Setting(whole(0, 10), "How often the whole chain is retried when no link answered.")] = 2
    jitter: Annotated[
        Literal["full", "equal", "decorrelated"],
        Setting(
            choice("full", "equal", "decorrelated"),
            "Jitter of the waits between retries (full, equal or decorrelated).",
        ),
    ] = "full"
    after_first_token: Annotated[
        Literal["continue", "restart", "error"],
        Setting(
            choice("continue", "restart", "error"),
            "What happens to an answer whose link fails in mid-answer: the next link continues it, restarts it behind "
            "a marker, or it ends with an error.",
        ),
    ] = "continue"  # noqa: S105 - a policy
    check_answers: Annotated[
        Literal["whole", "always", "never"],
        Setting(
            choice("whole", "always", "never"),
            "Which structured outputs (`response_format`) are validated, with the next link as fallback when invalid: "
            "`whole` those not streamed, `always` all (streamed ones are held back), `never` none.",
        ),
    ] = "whole"
    usd_per_request: Annotated[
        float | None,
        Setting(
            NUMBER, "Spend limit in USD for one request, by the links' `price`; `unlimited` is none.", none="unlimited"
        ),
    ] = None
    usd_per_hour: Annotated[
        float | None,
        Setting(NUMBER, "Spend limit in USD for all requests of an hour, or `unlimited`.", none="unlimited"),
    ] = None


class ResponseCacheSettings(Section, frozen=True):
    """The response cache: equal requests are answered once."""

    keep: Annotated[
        Literal["off", "determined", "all"],
        Setting(
            choice("off", "determined", "all"),
            "Which requests the response cache serves and coalesces: `off` none, `determined` those whose answer is "
            "always the same (`temperature` 0, a `seed`, beam search), `all` sampled ones too.",
        ),
    ] = "off"
    ttl_seconds: Annotated[float, Setting(NUMBER, "Seconds until a cached answer expires.")] = 3600.0
    max_bytes: Annotated[
        int, Setting(SIZE, "Memory for cached answers, such as `64MB`; the least recently used is evicted first.")
    ] = 64_000_000
    pinned: Annotated[
        list[str],
        Setting(TEXTS, "Prefixes of system prompts whose cached answers are evicted after all others."),
    ] = []
    between_clients: Annotated[
        bool, Setting(TRUTH, "Serve an answer cached for one client (API key, user name) to other clients too.")
    ] = False


class Backends(Section, frozen=True):
    """What all remote backends share."""

    timeout_seconds: Annotated[
        float, Setting(NUMBER, "Seconds to wait for the next piece of a remote backend's answer.")
    ] = 120.0
    connect_timeout_seconds: Annotated[
        float, Setting(NUMBER, "Seconds to wait for a connection to a remote backend.")
    ] = 5.0
    allow_remote: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether `auto` also finds what is not on this machine: OpenAI, the Copilot CLI, GitHub Models, an "
            "OPENAI_BASE_URL or OLLAMA_HOST elsewhere. Links that `chain` names are used either way.",
        ),
    ] = False
    unsupported: Annotated[
        Unsupported,
        Setting(
            choice("emulate", "refuse"),
            "What happens to a request field that a backend does not support: emulated by the prompt and validated "
            "(JSON, choices, tools, several answers), or refused by name.",
        ),
    ] = "emulate"
    api_keys: Annotated[
        dict[str, str],
        Setting(
            REFERENCES,
            "Where to read the API key of each host (`host` or `host:port`): `env:NAME` or `file:PATH`, never the key "
            "itself.",
        ),
    ] = msgspec.field(default_factory=lambda: {"api.openai.com": "env:OPENAI_API_KEY"})
