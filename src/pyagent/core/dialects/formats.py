"""The built-in dialects. The first of them that matches a chat template is chosen, so the specific ones come first."""

from __future__ import annotations

import secrets
import string
from dataclasses import replace

from pyagent.core.dialects.dialect import Dialect, TagDialect
from pyagent.core.dialects.gemma_calls import gemma_calls
from pyagent.core.dialects.harmony import HARMONY
from pyagent.core.dialects.json_calls import JsonCalls
from pyagent.core.dialects.named_calls import NamedCalls
from pyagent.core.dialects.python_calls import PythonCalls
from pyagent.core.dialects.text import Reasoning
from pyagent.core.dialects.xml_calls import XmlCalls

HERMES = TagDialect(
    name="hermes",
    models="Hermes 2 and 3, Qwen 2.5, Qwen 3, QwQ, Granite 4, SmolLM 3",
    clues=("<tool_call>",),
    calls=JsonCalls("<tool_call>\n", ("\n</tool_call>",), separator="\n"),
)

LLAMA3_JSON = TagDialect(
    name="llama3_json",
    models="Llama 3.1, 3.2 and 3.3",
    clues=("<|start_header_id|>", '"parameters"'),
    calls=JsonCalls(separator="; ", is_bare=True, arguments="parameters"),
    wrappers=("<|python_tag|>", "<|eom_id|>"),
    markers=frozenset({"<|python_tag|>", "<|eom_id|>"}),
)

LLAMA4_JSON = replace(
    LLAMA3_JSON,
    name="llama4_json",
    models="Llama 4",
    clues=("<|header_start|>",),
    wrappers=("<|python_start|>", "<|python_end|>", "<|eom|>"),
    markers=frozenset({"<|python_start|>", "<|python_end|>", "<|eom|>"}),
)

JSON = TagDialect(
    name="json",
    models="models that write calls as bare JSON, such as xLAM (chosen by name only)",
    calls=JsonCalls(is_bare=True, is_list=True),
)


def _mistral_id(name: str, index: int) -> str:
    """Return nine letters and digits, which Mistral's templates insist on."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


_MISTRAL_CALLS = NamedCalls("[TOOL_CALLS]", (), ("{name}[ARGS]", "{name}[CALL_ID]{id}[ARGS]", "{name}"))

MISTRAL_ARGS = TagDialect(
    name="mistral_args",
    models="Mistral with `[TOOL_CALLS]name[ARGS]{...}`: Small 3.2, Magistral, Devstral, Ministral 3",
    clues=("[TOOL_CALLS]", "[ARGS]"),
    reasoning=Reasoning("[THINK]", "[/THINK]"),
    calls=_MISTRAL_CALLS,
    markers=frozenset({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}),
    ends_reasoning=True,
    new_id=_mistral_id,
)

MISTRAL = replace(
    MISTRAL_ARGS,
    name="mistral",
    models="Mistral and Mixtral with `[TOOL_CALLS][...]`: 7B v0.3, Nemo, Large 2, Small 3.1",
    clues=("[TOOL_CALLS]",),
    calls=replace(_MISTRAL_CALLS, written=JsonCalls("[TOOL_CALLS]", is_list=True)),
)

QWEN3_CODER = TagDialect(
    name="qwen3_coder",
    models="Qwen 3 Coder, Qwen 3.5, Nemotron 3",
    clues=("<tool_call>", "<function=", "<parameter="),
    calls=XmlCalls("<tool_call>\n", ("\n</tool_call>",), is_bare=True),
)

SEED_OSS = TagDialect(
    name="seed_oss",
    models="Seed OSS",
    clues=("<seed:tool_call>",),
    reasoning=Reasoning("<seed:think>", "</seed:think>"),
    calls=XmlCalls(
        "<seed:tool_call>\n", ("\n</seed:tool_call>",), key=("<parameter=", ">"), value=("", "</parameter>\n")
    ),
    markers=frozenset({"<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"}),
)

GRANITE = TagDialect(
    name="granite",
    models="Granite 3.0, 3.1 and 3.3",
    clues=("<|tool_call|>",),
    absent=("<|/tool_call|>",),
    calls=JsonCalls("<|tool_call|>", is_list=True),
    answer=("<response>", "</response>"),
    markers=frozenset({"<|tool_call|>"}),
)

GRANITE_3_2 = replace(
    GRANITE,
    name="granite_3_2",
    models="Granite 3.2",
    clues=("Here is my thought process:",),
    reasoning=Reasoning("Here is my thought process:", "Here is my response:"),
    answer=("", ""),
)

PHI4_MINI = TagDialect(
    name="phi4_mini_json",
    models="Phi 4 mini",
    one_of=("<|/tool|>", "<|/tool_call|>", "functools["),
    calls=JsonCalls("<|tool_call|>", ("<|/tool_call|>",), is_list=True, aliases=("functools",)),
    markers=frozenset({"<|tool_call|>", "<|/tool_call|>"}),
)

DEEPSEEK_V3 = TagDialect(
    name="deepseek_v3",
    models="DeepSeek V3 and R1",
    clues=("<｜tool▁calls▁begin｜>", "```json"),
    calls=NamedCalls(
        "<｜tool▁call▁begin｜>",
        ("<｜tool▁call▁end｜>", "```"),
        ("function<｜tool▁sep｜>{name}\n```json\n",),
        tail="\n```",
        separator="\n",
    ),
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ends_reasoning=True,
    markers=frozenset(f"<｜tool▁{tag}｜>" for tag in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")),
)

DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    name="deepseek_v31",
    models="DeepSeek V3.1",
    clues=("<｜tool▁calls▁begin｜>",),
    calls=NamedCalls("<｜tool▁call▁begin｜>", ("<｜tool▁call▁end｜>",), ("{name}<｜tool▁sep｜>",)),
)

DEEPSEEK_V32 = TagDialect(
    name="deepseek_v32",
    models="DeepSeek V3.2",
    clues=("｜DSML｜",),
    calls=XmlCalls(
        "",
        (),
        name=('<｜DSML｜invoke name="', '">\n'),
        key=('<｜DSML｜parameter name="', '">'),
        value=("", "</｜DSML｜parameter>\n"),
        close="</｜DSML｜invoke>",
        is_trimmed=False,
        is_bare=True,
        has_string_flags=True,
    ),
    section=("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
    ends_reasoning=True,
    markers=frozenset({"｜DSML｜"}),
)

DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    name="deepseek_v4",
    models="DeepSeek V4",
    clues=("｜DSML｜", "tool_calls>"),
    section=("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"),
)

GLM45 = TagDialect(
    name="glm45",
    models="GLM 4.5, 4.6, 4.7",
    clues=("<arg_key>", "<arg_value>"),
    calls=XmlCalls(
        "<tool_call>",
        ("</tool_call>",),
        name=("", "\n"),
        key=("<arg_key>", "</arg_key>\n"),
        value=("<arg_value>", "</arg_value>\n"),
        close="",
        is_trimmed=False,
    ),
    markers=frozenset(
        {f"<{slash}{tag}>" for slash in ("", "/") for tag in ("think", "tool_call", "arg_key", "arg_value")}
    ),
)

KIMI_K2 = TagDialect(
    name="kimi_k2",
    models="Kimi K2",
    clues=("<|tool_calls_section_begin|>",),
    calls=NamedCalls(
        "<|tool_call_begin|>",
        ("<|tool_call_end|>",),
        ("functions.{name}:{index}<|tool_call_argument_begin|>", "{name}:{index}<|tool_call_argument_begin|>"),
        call_id="functions.{name}:{index}",
    ),
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ends_reasoning=True,
    markers=frozenset(
        f"<|tool_{tag}|>"
        for tag in ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")
    ),
    new_id=lambda name, index: f"functions.{name}:{index}",
)

LLAMA4 = TagDialect(
    name="llama4_pythonic",
    models="Llama 4 with a pythonic template",
    clues=("<|header_start|>", "[func_name1("),
    calls=PythonCalls(is_bare=True),
    wrappers=("<|python_start|>", "<|python_end|>", "<|eom|>"),
    markers=frozenset({"<|python_start|>", "<|python_end|>", "<|eom|>"}),
)

PYTHONIC = TagDialect(
    name="pythonic",
    models="Llama 3.2 with a pythonic template, ToolACE",
    clues=("[func_name1(",),
    calls=PythonCalls(is_bare=True),
)

LFM2 = TagDialect(
    name="lfm2",
    models="LFM2 and 2.5",
    one_of=("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
    calls=PythonCalls("<|tool_call_start|>", ("<|tool_call_end|>",)),
    markers=frozenset({"<|tool_call_start|>", "<|tool_call_end|>"}),
)

OLMO3 = TagDialect(
    name="olmo3",
    models="Olmo 3",
    clues=("<function_calls>",),
    absent=("<invoke", "DSML"),
    calls=PythonCalls("<function_calls>", ("</function_calls>",), brackets=("", ""), separator="\n"),
)

MINIMAX = TagDialect(
    name="minimax",
    models="MiniMax M1",
    clues=("<tool_calls>", "MiniMax"),
    calls=JsonCalls(separator="\n", is_bare=True),
    section=("<tool_calls>\n", "\n</tool_calls>"),
)

MINIMAX_M2 = TagDialect(
    name="minimax_m2",
    models="MiniMax M2",
    clues=("<minimax:tool_call>",),
    calls=XmlCalls(
        "",
        (),
        name=('<invoke name="', '">\n'),
        key=('<parameter name="', '">'),
        value=("", "</parameter>\n"),
        close="</invoke>",
        is_bare=True,
    ),
    section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    markers=frozenset({"<minimax:tool_call>", "</minimax:tool_call>"}),
)

HUNYUAN = TagDialect(
    name="hunyuan_a13b",
    models="Hunyuan A13B, Jamba",
    clues=("<tool_calls>",),
    calls=JsonCalls("<tool_calls>", ("</tool_calls>",), is_list=True),
    answer=("<answer>", "</answer>"),
)

APRIEL = replace(
    HUNYUAN,
    name="apriel",
    models="Apriel 1.5 and 1.6",
    clues=("<tool_calls>", "[BEGIN FINAL RESPONSE]"),
    reasoning=Reasoning("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    answer=("", ""),
    wrappers=("[END FINAL RESPONSE]",),
    ends_reasoning=True,
)

NEMOTRON = TagDialect(
    name="nemotron_json",
    models="Nemotron Nano 2, Nemotron Super 1.5",
    clues=("<TOOLCALL>",),
    calls=JsonCalls("<TOOLCALL>", ("</TOOLCALL>",), is_list=True),
)

COHERE = TagDialect(
    name="cohere_command",
    models="Command R7B, Command A",
    clues=("<|START_ACTION|>",),
    reasoning=Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=JsonCalls(
        "<|START_ACTION|>",
        ("<|END_ACTION|>",),
        is_list=True,
        name="tool_name",
        arguments="parameters",
        id_key="tool_call_id",
    ),
    wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ends_reasoning=True,
    markers=frozenset(f"<|{edge}_{tag}|>" for edge in ("START", "END") for tag in ("THINKING", "ACTION", "RESPONSE")),
)

FUNCTION_GEMMA = TagDialect(
    name="functiongemma",
    models="FunctionGemma",
    clues=("<start_function_call>", "<escape>"),
    calls=gemma_calls("<start_function_call>", "<end_function_call>", "<escape>"),
    markers=frozenset({"<start_function_call>", "<end_function_call>", "<escape>"}),
)

GEMMA4 = TagDialect(
    name="gemma4",
    models="Gemma 4",
    clues=("<|tool_call>", '<|"|>'),
    reasoning=Reasoning("<|channel>thought\n", "<channel|>"),
    calls=gemma_calls("<|tool_call>", "<tool_call|>", '<|"|>'),
    markers=frozenset({"<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"}),
    ends_reasoning=True,
)

DIALECTS: tuple[Dialect, ...] = (
    HARMONY,
    QWEN3_CODER,
    GLM45,
    SEED_OSS,
    MINIMAX_M2,
    MINIMAX,
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    MISTRAL_ARGS,
    MISTRAL,
    GEMMA4,
    FUNCTION_GEMMA,
    GRANITE_3_2,
    GRANITE,
    PHI4_MINI,
    LFM2,
    COHERE,
    NEMOTRON,
    OLMO3,
    APRIEL,
    HUNYUAN,
    HERMES,
    LLAMA4,
    LLAMA4_JSON,
    PYTHONIC,
    LLAMA3_JSON,
    JSON,
)
