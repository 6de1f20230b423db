"""The settings of `pyagent serve`."""

from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.setting_kinds import COUNT, NUMBER, PATH, SIZE, TEXT, TEXTS, TRUTH, URL, whole
from pyagent.core.settings.hooks import HOOKS, HookSettings
from pyagent.core.settings.rates import RATE
from pyagent.core.settings.section import Section, Setting


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
    max_runs: Annotated[
        int,
        Setting(COUNT, "Runs of each API key that may be under way at once (`/v1/runs`); one more gets 429."),
    ] = 100
    run_rate: Annotated[
        str | None,
        Setting(
            RATE,
            "How many runs each API key may begin, such as `30/minute` or `5/h burst 2`, by `/v1/runs`, a request for "
            "`agent:NAME`, or A2A; one more gets 429 with `Retry-After`. It holds over a restart.",
            none="unlimited",
        ),
    ] = None
    clients_may_approve: Annotated[
        bool,
        Setting(
            TRUTH,
            "Let clients' keys allow what their runs ask approval for, such as a shell command on this machine; else "
            "an administrator's key has to, for runs of its own.",
        ),
    ] = False
    a2a: Annotated[
        bool,
        Setting(
            TRUTH,
            "Take tasks from agents of other programs by A2A: `POST /a2a`, and the card that names this server's "
            "agents, which anyone who reaches the server may read.",
        ),
    ] = False
    allow_runtime_lora_updating: Annotated[
        bool,
        Setting(
            TRUTH,
            "Let an administrator load adapters from this machine's files, and unload them, while the server runs: "
            "`POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, as vLLM does with "
            "`VLLM_ALLOW_RUNTIME_LORA_UPDATING`.",
        ),
    ] = False
    hooks: Annotated[
        dict[str, HookSettings],
        Setting(
            HOOKS,
            "Webhooks that come in, each a table `[server.hooks.NAME]` with `secret` (`env:NAME` or `file:PATH`) and "
            "`task`, and `form` (`standard` or `github`), `agent`, `events`, `schema`, `tenant`, `max_bytes`, "
            "`max_waiting`, `tolerance_seconds`; `POST /v1/hooks/NAME` begins a run of the task "
            "([how](../how-to/webhooks.md#take-webhooks)).",
        ),
    ] = msgspec.field(default_factory=dict[str, HookSettings])
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
