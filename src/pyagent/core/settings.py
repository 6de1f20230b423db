"""The model of every setting: name, type, default, how it is read, what it means; the reference page is made from it.

Frozen. Reading files and the environment is `core.config`'s work, which checks what it reads: `Settings()` here is the
defaults alone. Secrets never stand in settings, only references to them (`env:NAME`, `file:PATH`).
"""

from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
import platformdirs

from pyagent.core.chain.settings import LinkSettings, links_of, read_links
from pyagent.core.messages import ReasoningEffort, Unsupported
from pyagent.core.setting_kinds import (
    COUNT,
    NUMBER,
    PATH,
    REFERENCES,
    SIZE,
    TABLE,
    TEXT,
    TEXTS,
    TRUTH,
    URL,
    Kind,
    choice,
    number,
    or_word,
    read_table,
    whole,
)

__all__ = ["ENV_PREFIX", "Engine", "RequestClass", "Section", "Setting", "Settings"]

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


def _auto(kind: Kind, meaning: str) -> Setting:
    return Setting(kind, meaning, none="auto")


class Rules(Section, frozen=True):
    """Rules for all links of the chain: privacy, deadline, retries, spend limits."""

    private: Annotated[list[str], Setting(TEXTS, "Backend schemes that may answer requests marked private.")] = (
        msgspec.field(default_factory=lambda: ["native"])
    )
    deadline_seconds: Annotated[
        float | None,
        Setting(
            NUMBER,
            "Longest time in seconds for a request over all links; `never` leaves it to the caller.",
            none="never",
        ),
    ] = None
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


class RunBudget(Section, frozen=True):
    """What one run may use; each call reserves its share first."""

    tokens: Annotated[
        int | None, Setting(COUNT, "Prompt and output tokens that one run may use, or `unlimited`.", none="unlimited")
    ] = 1_000_000
    seconds: Annotated[
        float | None, Setting(NUMBER, "Seconds that one run may take, or `unlimited`.", none="unlimited")
    ] = 3600.0
    agents: Annotated[int, Setting(COUNT, "Agents that one run may start, spawned ones included.")] = 10_000


class Budget(Section, frozen=True):
    """Limits on what work may cost."""

    run: RunBudget = RunBudget()


class RequestClass(Section, frozen=True):
    """How requests of one class wait for the engine."""

    policy: Annotated[str, Setting(TEXT, "Queue policy of the request class.")] = "fcfs"
    options: Annotated[dict[str, Any], Setting(TABLE, "Options of the queue policy.")] = {}
    share: Annotated[float, Setting(number(10**6), "Share of the engine that the request class gets.")] = 1.0


def _read_budgets(value: object) -> dict[str, int]:
    efforts = cast("tuple[str, ...]", get_args(ReasoningEffort))
    if unknown := sorted(read_table(value).keys() - set(efforts)):
        raise ValueError(f"expected efforts out of {', '.join(efforts)}, got {unknown[0]!r}")
    return {name: cast("int", whole(0).read(number)) for name, number in read_table(value).items()}


def _read_templates(value: object) -> dict[str, str]:
    templates = read_table(value)
    if not all(isinstance(template, str) for template in templates.values()):
        raise ValueError("expected a text for each model")
    return cast("dict[str, str]", templates)


def _read_classes(value: object) -> dict[str, RequestClass]:
    return {name: _read_class(name, table) for name, table in read_table(value).items()}


def _read_tables(value: object) -> dict[str, dict[str, object]]:
    return {name: read_table(table) for name, table in read_table(value).items()}


def _read_class(name: str, value: object) -> RequestClass:
    settings = settings_in(RequestClass)
    fields: dict[str, Any] = {}
    for key, entry in read_table(value).items():
        if key not in settings:
            raise ValueError(f"expected a table with {', '.join(settings)} for {name!r}, got {key!r}")
        try:
            fields[key] = settings[key].read(entry)
        except ValueError as error:
            raise ValueError(f"{error} as {name}.{key}") from error
    return RequestClass(**fields)


class Engine(Section, frozen=True):
    """The embedded engine."""

    models: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Models that `native` offers, the first by default: names from the store, or files (`./` is beside this "
            "file).",
        ),
    ] = msgspec.field(default_factory=lambda: ["smollm2:135m"])
    memory: Annotated[
        int | None,
        _auto(
            SIZE,
            "Memory limit for the process and all models together, such as `12GB`; `auto` is the process and 70 % of "
            "the memory available.",
        ),
    ] = None
    runner: Annotated[
        str,
        Setting(
            TEXT,
            "Runner of the models: `cpu`, or one that a plugin brings for another device; `auto` is the first of those "
            "that can run the model on this machine, else `cpu`.",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        _auto(
            COUNT,
            "Threads that compute; `auto` is one for each core that this process may use, by its affinity and its "
            "container's CPU quota.",
        ),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "f32", "f16", "bf16", "int8"],
        Setting(
            choice("auto", "f32", "f16", "bf16", "int8"),
            "Data type of the KV cache: `auto` is `bf16`, the quickest; `f16` is more exact, `int8` takes about half "
            "the memory.",
        ),
    ] = "auto"
    max_num_seqs: Annotated[int, Setting(COUNT, "Largest number of sequences in the running batch.")] = 64
    max_num_batched_tokens: Annotated[
        int, Setting(COUNT, "Largest number of tokens in one step; longer prompts are prefilled in chunks.")
    ] = 512
    decode_latency_ms: Annotated[
        float | None,
        _auto(
            NUMBER,
            "Inter-token latency in milliseconds that the prefill of other requests may cause; `auto` is ten times a "
            "decode-only step, at least 100.",
        ),
    ] = None
    async_scheduling: Annotated[
        Literal["auto", "on", "off"],
        Setting(
            choice("auto", "on", "off"),
            "Schedule a step while the one before it is computed; `auto` does so where `threads` leaves a core free.",
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        _auto(COUNT, "Context length: the most tokens of a sequence, prompt and output; `auto` is the model's own."),
    ] = None
    idle_sleep_seconds: Annotated[
        float | None,
        Setting(
            NUMBER,
            "Seconds without a request after which the engine sleeps until the next one; `never` stays awake.",
            none="never",
        ),
    ] = None
    idle_sleep_level: Annotated[
        Literal[1, 2],
        Setting(choice(1, 2), "What a sleeping engine releases: 1 the KV cache memory, 2 the models too."),
    ] = 1
    process: Annotated[
        bool,
        Setting(
            TRUTH,
            "Run the engine in a process of its own, restarted after a crash; answers go on where they stopped.",
        ),
    ] = False
    hang_seconds: Annotated[
        float | None,
        Setting(
            NUMBER,
            "Seconds after which a step counts as hung, so that the engine's process is restarted; `never` waits.",
            none="never",
        ),
    ] = 60.0
    queues: Annotated[
        dict[str, RequestClass],
        Setting(
            Kind("table", _read_classes, "table"),
            "Request classes, each a table: `policy` (`fcfs`, `priority`, `deadline`, `fair`, `mlfq` or a plugin's), "
            "its `options`, and the class's `share` of the engine (2.0 is twice 1.0). Requests without a class are "
            "`default`.",
        ),
    ] = {}
    eviction: Annotated[
        str,
        Setting(
            TEXT,
            "Eviction policy of the prefix cache for blocks that no request uses, after demoted and before retained "
            "prompts: `lru`, `lfu`, `fifo`, `arc`, `slru`, `tlru`, `priority` or a plugin's.",
        ),
    ] = "lru"
    prefix_hash: Annotated[
        Literal["siphash", "sha256", "xxh3"],
        Setting(
            choice("siphash", "sha256", "xxh3"),
            "Hash behind the keys that `pyagent cache show` gives cached prompts: `siphash` is keyed anew in each "
            "process, so that no prompt can be made to collide; the others give equal keys in every process.",
        ),
    ] = "siphash"
    sessions: Annotated[
        Literal["auto", "named", "off"],
        Setting(
            choice("auto", "named", "off"),
            "Conversations that continue the token log of their last turn: `auto` any, `named` those with a `session`, "
            "`off` none.",
        ),
    ] = "auto"
    hints: Annotated[
        bool,
        Setting(
            TRUTH, "Let the fleet hint which prompts will be used again, so that the prefix cache evicts others first."
        ),
    ] = True
    structured_outputs_backend: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Grammar backends for structured output, in the order in which they are asked: `guidance`, `xgrammar`, or "
            "what plugins bring. What one refuses, the next is asked for; `auto` is `guidance`, then all others.",
        ),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    logits_processors: Annotated[
        dict[str, dict[str, Any]],
        Setting(
            Kind("table", _read_tables, "table"),
            "Logits processors of plugins that run for every request: each name is a table of its `args`.",
        ),
    ] = {}
    logits_processor_seconds: Annotated[
        float,
        Setting(
            NUMBER,
            "Seconds that a logits processor may take in one step; the requests of one that takes longer end. Making "
            "one may take ten times as long.",
        ),
    ] = 5.0
    normalize_prompts: Annotated[
        bool,
        Setting(
            TRUTH,
            "Normalize system prompts: move what popular clients change with each request (billing lines, clocks) to "
            "the end, so that prompts keep a common prefix.",
        ),
    ] = True
    dialect: Annotated[
        str,
        Setting(
            TEXT,
            "How models write reasoning and tool calls: `auto` (as their chat templates show), `none` (reasoning stays "
            "in the text, and tools are described in the prompt), or the name of a dialect, such as `hermes`.",
        ),
    ] = "auto"
    thinking_token_budget: Annotated[
        int | None,
        Setting(
            whole(0),
            "Tokens that a model may think before an answer, where a request does not say (`thinking_token_budget`): "
            "then its reasoning is ended; `unlimited` leaves it to the model.",
            none="unlimited",
        ),
    ] = None
    effort_budgets: Annotated[
        dict[str, int],
        Setting(
            Kind("table", _read_budgets, "table"),
            "Tokens that a model may think by the `reasoning_effort` of a request: `low = 1024`, `medium = 4096`. "
            "Efforts without one are left to the model's chat template.",
        ),
    ] = {}
    thinking_budget_message: Annotated[
        str,
        Setting(
            TEXT,
            "What a model is made to think last when its budget is spent, before the tag that ends its reasoning. Some "
            "models answer better after a sentence that says so.",
        ),
    ] = ""
    tokenizer: Annotated[
        str,
        Setting(
            TEXT,
            "Reader of the models' tokenizers: `gguf`, `huggingface` (tokenizer.json), `tekken`, `tiktoken`, "
            "`sentencepiece`, or a plugin's; `auto` is the first that knows the model's files.",
        ),
    ] = "auto"
    chat_template: Annotated[
        str,
        Setting(
            TEXT,
            "Chat template of the models: `auto` (their own, or else that of the family that their tokens show), "
            "the name of a built-in one such as `chatml`, a file, or the template itself.",
        ),
    ] = "auto"
    chat_templates: Annotated[
        dict[str, str],
        Setting(Kind("table", _read_templates, "table"), "Likewise for single models, by their names in `models`."),
    ] = {}
    stream_interval: Annotated[
        int,
        Setting(
            COUNT,
            "Tokens whose text is streamed together, after an answer's first ones: more of them cost the server less "
            "for each token.",
        ),
    ] = 1
    isa: Annotated[
        Literal["auto", "scalar", "avx2", "avx512", "amx"],
        Setting(choice("auto", "scalar", "avx2", "avx512", "amx"), "Widest CPU instruction set to use, for debugging."),
    ] = "auto"


class Fleet(Section, frozen=True):
    """The fleet of agents."""

    max_concurrency: Annotated[int, Setting(COUNT, "Steps of one run that may run at once.")] = 8


class Server(Section, frozen=True):
    """`pyagent serve`."""

    host: Annotated[str, Setting(TEXT, "Address that the server listens on.")] = "127.0.0.1"
    port: Annotated[int, Setting(whole(0, 65535), "Port that the server listens on; 0 takes a free one.")] = 8321
    api_keys_file: Annotated[
        Path | None,
        Setting(
            PATH,
            "File with the clients' API keys, one a line, as `KEY` or `NAME KEY`; `none` accepts everybody. What is "
            "computed or kept for one key is never used for another.",
            none="none",
        ),
    ] = None
    admin_keys_file: Annotated[
        Path | None,
        Setting(
            PATH,
            "File with API keys, in the same form, that may also drain, sleep and wake the engines, fetch models, "
            "share pinned prompts between all keys and clear all kept answers.",
            none="none",
        ),
    ] = None
    files_root: Annotated[
        Path | None,
        Setting(
            PATH,
            "Folder below which agents may read files for clients of the server (`agent:code-health`); `none`: they "
            "read no file.",
            none="none",
        ),
    ] = None
    requests_per_minute: Annotated[
        int | None,
        Setting(COUNT, "Rate limit: requests of each API key in a minute, or `unlimited`.", none="unlimited"),
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Setting(
            COUNT, "Rate limit: prompt and output tokens of each API key in a minute, or `unlimited`.", none="unlimited"
        ),
    ] = None
    max_connections: Annotated[
        int,
        Setting(
            COUNT,
            "Connections held at once, as far as `ulimit -n` allows; for one more, the one that has been idle longest "
            "is closed.",
        ),
    ] = 1000
    max_body_bytes: Annotated[int, Setting(SIZE, "Largest request body that the server reads, such as `32MB`.")] = (
        32_000_000
    )
    request_seconds: Annotated[
        float, Setting(NUMBER, "Seconds that a request's headers, and then its body, may take to arrive.")
    ] = 30.0
    allowed_origins: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Origins of pages in a browser that may use the server (CORS), such as `http://localhost:3000`; `*` is "
            "any, which needs API keys.",
        ),
    ] = []
    private_images: Annotated[
        bool,
        Setting(TRUTH, "Pass on image URLs of private networks, which a backend would fetch for any client."),
    ] = False
    kept_responses_bytes: Annotated[
        int, Setting(SIZE, "Memory for stored responses (`/v1/responses`); the oldest are evicted first.")
    ] = 64_000_000
    kept_responses_seconds: Annotated[
        float, Setting(NUMBER, "Seconds until a stored response (`/v1/responses`) expires.")
    ] = 86_400.0
    otlp_endpoint: Annotated[
        str | None,
        Setting(
            URL,
            "Base URL of an OpenTelemetry collector to send traces to (OTLP over HTTP); also read from "
            "`OTEL_EXPORTER_OTLP_ENDPOINT`.",
            none="none",
        ),
    ] = None
    drain_seconds: Annotated[
        float, Setting(NUMBER, "Seconds that SIGTERM waits for running requests to finish; Ctrl+C waits 3 s.")
    ] = 30.0


class Plugins(Section, frozen=True):
    """Which plugins are used."""

    disable: Annotated[
        list[str], Setting(TEXTS, "Plugins to disable, by the names that `pyagent plugins list` shows.")
    ] = []
    order: Annotated[
        list[str],
        Setting(TEXTS, "Plugins that take precedence, over built-in ones too, when several register the same name."),
    ] = []


class Paths(Section, frozen=True):
    """Where files are kept."""

    models: Annotated[
        Path, Setting(PATH, "Folder of the downloaded models.", shown="the user's data folder, `pyagent/models`")
    ] = platformdirs.user_data_path("pyagent", appauthor=False) / "models"
    data: Annotated[
        Path, Setting(PATH, "Folder of the journals of past runs.", shown="the user's data folder, `pyagent`")
    ] = platformdirs.user_data_path("pyagent", appauthor=False)


class Journal(Section, frozen=True):
    """How long past runs are kept (`pyagent runs list`). Private runs are not kept at all."""

    max_runs: Annotated[
        int | None,
        Setting(COUNT, "Number of past runs kept, the oldest deleted first, or `unlimited`.", none="unlimited"),
    ] = 1_000
    max_age_days: Annotated[
        float | None, Setting(NUMBER, "Days after which a run is deleted, or `unlimited`.", none="unlimited")
    ] = 90.0


class Log(Section, frozen=True):
    """Logging, always to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting(choice("debug", "info", "warning", "error"), "Lowest severity of the messages that are logged."),
    ] = "warning"
    format: Annotated[
        Literal["console", "json"],
        Setting(choice("console", "json"), "Log format: lines for people, or one JSON object a line."),
    ] = "console"


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


class Cluster(Section, frozen=True):
    """The cluster that this node belongs to: where it listens, and how it finds the others."""

    name: Annotated[
        str | None, Setting(TEXT, "What other nodes show this one as; `auto` is the host's name.", none="auto")
    ] = None
    bind: Annotated[
        list[str],
        Setting(TEXTS, "Addresses that `pyagent node` listens on; the default is every interface of the machine."),
    ] = msgspec.field(default_factory=lambda: ["0.0.0.0", "::"])  # noqa: S104 - a node is asked to be reachable
    port: Annotated[
        int, Setting(whole(0, 65535), "Port of the door, where nodes prove that they belong together; 0 is a free one.")
    ] = 8322
    seeds: Annotated[
        list[str],
        Setting(TEXTS, "Doors of nodes to knock at besides those that are found: `host` or `host:port`."),
    ] = []
    multicast: Annotated[
        bool, Setting(TRUTH, "Whether nodes are looked for, and this one is announced, by multicast DNS.")
    ] = True


class Settings(Section, frozen=True):
    """All settings. `Settings()` is the defaults alone; `load_settings` reads files, environment and flags."""

    chain: Annotated[
        list[str | LinkSettings],
        Setting(
            Kind("list of links", read_links, "list"),
            "The fallback chain: backends in the order they are tried, each `SCHEME` or `SCHEME:TARGET` "
            "(`ollama:llama3.2`), or a table with that as `use` and conditions and limits of its own. `auto` is what "
            "is found of `lmstudio`, `native`, `openai`, `ollama`, `copilot`, `github`.",
        ),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    rules: Rules = Rules()
    response_cache: ResponseCacheSettings = ResponseCacheSettings()
    budget: Budget = Budget()
    engine: Engine = Engine()
    fleet: Fleet = Fleet()
    server: Server = Server()
    plugins: Plugins = Plugins()
    paths: Paths = Paths()
    journal: Journal = Journal()
    log: Log = Log()
    backends: Backends = Backends()
    cluster: Cluster = Cluster()

    @property
    def links(self) -> list[LinkSettings]:
        """The chain's links, each as a table."""
        return links_of(self.chain)


def sections_in(section: type[Section]) -> dict[str, type[Section]]:
    """Return the tables that stand in a table, by name."""
    return {name: kind for name, kind in section.__annotations__.items() if isinstance(kind, type)}


def settings_in(section: type[Section]) -> dict[str, Setting]:
    """Return the settings of a table itself, by name."""
    annotations = section.__annotations__.items()
    return {name: kind.__metadata__[0] for name, kind in annotations if get_origin(kind) is Annotated}
