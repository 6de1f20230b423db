"""The settings of the embedded engine."""

from typing import Annotated, Any, Literal

import msgspec

from pyagent.core.setting_kinds import COUNT, NUMBER, SIZE, TEXT, TEXTS, TRUTH, choice, number, whole
from pyagent.core.settings.engine_tables import (
    ADAPTERS,
    ARGUMENTS,
    BUDGETS,
    CLASSES,
    TEMPLATES,
    RequestClass,
    Speculative,
)
from pyagent.core.settings.section import Section, Setting, auto


class Engine(Section, frozen=True):
    """The embedded engine."""

    models: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Models that `native` offers, the first by default: names from the store, or files (`./` is beside this "
            "file), which requests name without folder and `.gguf`.",
        ),
    ] = msgspec.field(default_factory=lambda: ["smollm2:135m"])
    memory: Annotated[
        int | None,
        auto(
            SIZE,
            "Memory limit for the process and all models together, such as `12GB`; `auto` is the process and 70 % of "
            "the memory available.",
        ),
    ] = None
    runner: Annotated[
        str,
        Setting(
            TEXT,
            "Runner of the models: `cpu`, `torch` (for GPUs; needs `pip install torch numpy`), or one that a plugin "
            "brings; `auto` is the first that is at its best on this machine and can run the model, else `cpu`.",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        auto(
            COUNT,
            "Threads that compute; `auto` is one for each core that this process may use, by its affinity and its "
            "container's CPU quota.",
        ),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "f32", "f16", "bf16", "int8", "fp8"],
        Setting(
            choice("auto", "f32", "f16", "bf16", "int8", "fp8"),
            "Data type of the KV cache: `auto` is `bf16` for the `cpu` runner, the quickest there, and that of the "
            "products (`engine.dtype`) for the `torch` runner; `f16` is more exact, `int8` (of the `cpu` runner) and "
            "`fp8` (of the `torch` runner: e4m3 with scales) take about half the memory.",
        ),
    ] = "auto"
    kv_cache_memory_bytes: Annotated[
        int | None,
        auto(
            SIZE,
            "Most memory for each model's KV cache, such as `4GB`; `auto` is what all sequences can hold, as far as "
            "there is room.",
        ),
    ] = None
    kv_cache_tokens: Annotated[
        int | None,
        auto(COUNT, "The same bound in tokens, of all sequences together; the smaller one holds."),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        Setting(
            number(1.0),
            "Share of a GPU's memory that the engine may take for all models together, as far as other programs leave "
            "it.",
        ),
    ] = 0.9
    dtype: Annotated[
        Literal["auto", "f32", "f16", "bf16"],
        Setting(
            choice("auto", "f32", "f16", "bf16"),
            "Data type of the `torch` runner's weights and products: `auto` is `bf16` on a GPU that has it, else "
            "`f16`, and `f32` on the CPU. The `cpu` runner takes weights as the file has them.",
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["auto", "keep", "none"],
        Setting(
            choice("auto", "keep", "none"),
            "Whether the `torch` runner leaves weights quantised as the file has them: `auto` does on a GPU, `keep` "
            "also on the CPU, where that is slow; `none` dequantises them when they are loaded.",
        ),
    ] = "auto"
    attention: Annotated[
        str,
        Setting(
            TEXT,
            "Attention backend of the `torch` runner: `triton`, `rust`, `sdpa`, `flex`, `torch` (the plain), "
            "`flashinfer` and `flash_attn` where they are installed, or a plugin's; "
            "`auto` is on a GPU the quickest that a trial finds right, else `rust` or `sdpa`, the first that can.",
        ),
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether a request's logits are the same bits whatever is computed beside it and however its prompt is cut "
            "into chunks. The `cpu` runner's always are; the `torch` runner computes slower for it.",
        ),
    ] = False
    compile: Annotated[
        Literal["off", "on"],
        Setting(
            choice("off", "on"),
            "Whether the `torch` runner compiles what lies between a model's products (torch.compile) when it is "
            "loaded: `on` takes each compiled function where it is measured to be quicker, and keeps it in "
            "`compiled` of the data folder for the next start.",
        ),
    ] = "off"
    max_num_seqs: Annotated[int, Setting(COUNT, "Largest number of sequences in the running batch.")] = 64
    max_num_batched_tokens: Annotated[
        int, Setting(COUNT, "Largest number of tokens in one step; longer prompts are prefilled in chunks.")
    ] = 512
    max_num_waiting: Annotated[
        int,
        Setting(
            COUNT,
            "Largest number of requests that may wait for the engine of a model, in all request classes together; one "
            "more gets 429 with `Retry-After`, and a chain asks its next link.",
        ),
    ] = 4096
    decode_latency_ms: Annotated[
        float | None,
        auto(
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
        auto(COUNT, "Context length: the most tokens of a sequence, prompt and output; `auto` is the model's own."),
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
    data_parallel: Annotated[
        int | None,
        auto(
            whole(1, 64),
            "Copies of the engine, each a process with its share of `threads`, `memory`, the cores and the GPUs, that "
            "answer as one; `auto` is one for each NUMA node.",
        ),
    ] = 1
    tensor_parallel_size: Annotated[
        int,
        Setting(
            whole(1, 64),
            "GPUs among which the `torch` runner divides each layer, each with a process of its own (tensor "
            "parallelism). The sizes of the model must be multiples of it. The engine then has a process of its own.",
        ),
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        Setting(
            whole(1, 64),
            "Groups of `tensor_parallel_size` GPUs among which the `torch` runner divides a model's layers (pipeline "
            "parallelism).",
        ),
    ] = 1
    distributed_executor_backend: Annotated[
        str,
        Setting(
            TEXT,
            "What starts the processes of a model divided among GPUs: `mp` (child processes of the engine's), or a "
            "plugin's by name, such as `ray`.",
        ),
    ] = "mp"
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
            CLASSES,
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
    kv_connector: Annotated[
        str,
        Setting(
            TEXT,
            "Connector that moves KV between engines: `auto` is that of the cluster where `pyagent node` runs, `none` "
            "moves nothing, or the name of a plugin's.",
        ),
    ] = "auto"
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
            ARGUMENTS,
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
            BUDGETS,
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
    trust_request_chat_template: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether requests may bring a `chat_template` of their own. It runs within the bounds of a file's, but its "
            "author decides what the model is told, system prompts included.",
        ),
    ] = False
    chat_templates: Annotated[
        dict[str, str],
        Setting(TEMPLATES, "Likewise for single models, by their names in `models`."),
    ] = {}
    adapters: Annotated[
        dict[str, str],
        Setting(
            ADAPTERS,
            "Adapters (LoRA, DoRA) by name, each the path of a folder that peft saved, or of a GGUF file (`./` is "
            "beside this file). A request names `MODEL:NAME` as its model, or `MODEL:A+B` for several that add up; a "
            "key `MODEL:NAME` is an adapter of that model alone. For the `cpu` runner.",
        ),
    ] = {}
    stream_interval: Annotated[
        int,
        Setting(
            COUNT,
            "Tokens whose text is streamed together, after an answer's first ones: more of them cost the server less "
            "for each token.",
        ),
    ] = 1
    speculative: Speculative = Speculative()
    isa: Annotated[
        Literal["auto", "scalar", "avx2", "avx512", "amx"],
        Setting(choice("auto", "scalar", "avx2", "avx512", "amx"), "Widest CPU instruction set to use, for debugging."),
    ] = "auto"

    @property
    def num_ranks(self) -> int:
        """Devices among which a model is divided."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
