"""`pyagent models`: which models there are, what each needs; how one is fetched, quantised, merged or thrown away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.merge import merge
from pyagent.cli.model_check import check
from pyagent.cli.model_experts import experts
from pyagent.cli.one_model import local_name
from pyagent.cli.options import AsJson, Config
from pyagent.cli.quantize import quantize
from pyagent.cli.startup import read_settings, terminal_progress
from pyagent.core.one_line import printable
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.core.messages import ModelTask
    from pyagent.core.runners.factory import KvDtype
    from pyagent.infrastructure.engine.models.memory_estimate import Fit
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.models.describe import DrafterDescription, EncoderDescription, ModelDescription
    from pyagent.infrastructure.models.store import ModelStore, StoredModel, Watcher

app = typer.Typer(add_completion=False, help="List, fetch, inspect, quantise and merge models.", no_args_is_help=True)
app.command()(quantize)
app.command()(merge)
app.command()(experts)
app.command()(check)

_CONTEXTS = (2_048, 8_192, 32_768, 131_072)
_QUANTISED = ("Q4_0", "Q4_K_M", "Q8_0")
"""Types of which `show` says what a folder would take."""
_KV_DTYPES: tuple[KvDtype, ...] = ("bf16", "f16", "int8", "fp8")


@app.command("list")
def list_models(config: Config = None, as_json: AsJson = False) -> None:
    """Show the models that are here, and the names that can be fetched."""
    import msgspec

    store = _store(config)
    here = store.list()
    names = {model.manifest.name for model in here}
    absent = {name: source for name, source in store.catalog.items() if name not in names}
    if as_json:
        rows = [
            msgspec.to_builtins(model.manifest)
            | {"path": str(model.path), "size_bytes": model.size_bytes}
            | _capabilities(store.task_of(model.manifest.name))
            for model in here
        ]
        known = [
            {"name": name, "size_bytes": source.size_bytes, "licence": source.licence, "about": source.about}
            | _capabilities(source.task)
            for name, source in absent.items()
        ]
        begun = [{"name": name, "size_bytes": size} for name, size in store.begun().items()]
        typer.echo(json.dumps({"folder": str(store.folder), "models": rows, "known": known, "begun": begun}))
        return
    lines = [
        (model.manifest.name, format_bytes(model.size_bytes), model.manifest.licence, str(model.path)) for model in here
    ]
    lines += [
        (name, format_bytes(source.size_bytes), source.licence, f"not here; pyagent models pull {name}")
        for name, source in absent.items()
    ]
    lines += [
        (name, format_bytes(size), "begun", f"pyagent models pull {name} goes on, pyagent models rm {name} deletes it")
        for name, size in store.begun().items()
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
    typer.echo(
        f"also: a GGUF file or safetensors folder by its path, or by its name when it lies in {store.folder}; or "
        "hf:OWNER/NAME[/FILE.gguf]"
    )


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="smollm2:135m, or hf:OWNER/NAME[/FILE.gguf].")],
    config: Config = None,
) -> None:
    """Fetch a model, unless it is here."""
    name = _store(config).meant(name)
    if found := _store(config).find(name):
        typer.echo(f"{name} is here: {found.path} ({format_bytes(found.size_bytes)})")
        return
    with terminal_progress("you asked for it") as watch:
        stored = _store(config, watch).pull(name)
    typer.echo(f"{name} is here: {stored.path} ({format_bytes(stored.size_bytes)})")


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A model in the store, or a file.")],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is, what memory it needs and whether it fits this machine; reads its header only."""
    from pyagent.infrastructure.models.describe import describe_drafter, describe_encoder

    store = _store(config)
    name = local_name(name, store)
    found = store.find(name)
    path = found.path if found else store.locate(name)
    licence = found.manifest.licence if found else "unknown"
    if (encoder := describe_encoder(path, licence)) is not None:
        _show_encoder(name, path, encoder, as_json=as_json)
        return
    if (drafter := describe_drafter(path, licence)) is not None:
        _show_drafter(name, path, drafter, as_json=as_json)
        return
    _show_decoder(name, path, found, config, as_json=as_json)


def _show_decoder(name: str, path: Path, found: StoredModel | None, config: Path | None, *, as_json: bool) -> None:
    import msgspec

    from pyagent.cli.model_adapters import adapter_cards
    from pyagent.infrastructure.engine.memory.process import resident_bytes
    from pyagent.infrastructure.models.describe import describe_model, inputs_left_aside
    from pyagent.infrastructure.models.tensor_checksums import checksum_kinds

    options = _options(config).of_model(name)
    licence = found.manifest.licence if found else "unknown"
    about = describe_model(path, licence, architectures=options.runner.architectures)
    memory = {context: about.memory_bytes(context) for context in _contexts(about.context_length)}
    process_bytes = resident_bytes()
    total_bytes, fits, refusal = _fits(path, options, config, process_bytes)
    smaller, not_smaller = _quantised(path, about.quantization)
    kinds: tuple[KvDtype, ...] = tuple(fit.kv_dtype for fit in fits[:1])
    fits_as = {
        kind: fit
        for kind, size in smaller.items()
        for fit in _fits(path, options, config, process_bytes, size, kinds)[1]
    }
    template, abilities = _chat(path, options)
    adapters, left_aside, sums = adapter_cards(name, config), inputs_left_aside(path), checksum_kinds(path)
    if as_json:
        source = found.manifest.source if found else "file"
        described = {"name": name, "path": str(path), "source": source, **msgspec.to_builtins(about)}
        described |= {"capabilities": abilities, "not_read": left_aside, "checksums": sums}
        described |= {"memory_bytes": {str(key): value for key, value in memory.items()}}
        described |= {"engine_bytes": total_bytes, "fits": {fit.kv_dtype: _fit_as_json(fit) for fit in fits}}
        quantised = {kind: {"file_bytes": smaller[kind]} | _fit_as_json(fit) for kind, fit in fits_as.items()}
        described |= {"quantised": quantised}
        described |= {"refused": refusal, "adapters": msgspec.to_builtins(adapters)}
        typer.echo(json.dumps(described | {"chat_template": template or None}))
        return
    card = _card(about, path, memory, template, abilities)
    card[6:6] = [("fits" if fit is fits[0] else "", _fit_text(fit)) for fit in fits]
    card[6:6] = [("fits", f"no: {refusal}")] if refusal else []
    card[6:6] = [("fault", f"it cannot be loaded: {about.fault}")] if about.fault else []
    card[1:1] = [("attention", about.attention)] if about.attention else []
    card[-2:-2] = [("not read", ", ".join(left_aside))] if left_aside else []
    card += [("checksums", f"{', '.join(sums)} of each tensor; `pyagent models check` compares them")] if sums else []
    card += [(f"as {kind}", _quantised_text(smaller[kind], fit)) for kind, fit in fits_as.items()]
    card += [("quantised", not_smaller)] if not_smaller else []
    card += [("" if place else "adapters", one.line()) for place, one in enumerate(adapters)]
    for key, value in card:
        typer.echo(f"{key:<13} {printable(str(value))}")  # a file's own words are in it


def _show_encoder(name: str, path: Path, about: EncoderDescription, *, as_json: bool) -> None:
    import msgspec

    smaller, not_smaller = _quantised(path, about.quantization)
    if as_json:
        described = {"name": name, "path": str(path), **_capabilities(about.task), **msgspec.to_builtins(about)}
        described |= {"quantised": {kind: {"file_bytes": size} for kind, size in smaller.items()}}
        typer.echo(json.dumps(described))
        return
    memory = about.weight_bytes + about.workspace_bytes
    does, gives = _what_it_gives(about)
    bytes_of_long = about.long_text_bytes
    long = f"; {format_bytes(bytes_of_long)} more while the longest text is read" if bytes_of_long else ""
    card = [
        ("architecture", f"{about.architecture}, {about.num_layers} layers; an encoder: it {does} and answers nothing"),
        *gives,
        ("quantisation", about.quantization),
        ("parameters", _counted(about.num_parameters)),
        ("vocabulary", f"{about.vocab_size:,} tokens"),
        ("memory", format_bytes(memory) + long),
        ("licence", about.licence),
        ("file", f"{path} ({format_bytes(about.file_bytes)})"),
    ]
    for kind, size in smaller.items():
        needs = format_bytes(size + about.workspace_bytes)
        card.append((f"as {kind}", f"{format_bytes(size)} by `pyagent models quantize`, {needs} of memory"))
    card += [("quantised", not_smaller)] if not_smaller else []
    for key, value in card:
        typer.echo(f"{key:<13} {printable(value)}")


def _show_drafter(name: str, path: Path, about: DrafterDescription, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        typer.echo(json.dumps({"name": name, "path": str(path), "capabilities": [], **msgspec.to_builtins(about)}))
        return
    part = f", in {about.num_clusters:,} clusters" if about.num_clusters else ""
    if about.num_drafted < about.vocab_size:
        part = f", of which it drafts {about.num_drafted:,}"
    match about.kind:
        case "head":
            kind, target = "EAGLE-3, one layer; a head: it drafts and answers nothing", "a model"
            kv = "a layer of KV in the model's pages"
        case "medusa":
            layers = "one layer" if about.num_layers == 1 else f"{about.num_layers} layers"
            kind, target = f"Medusa, {about.most_drafts} heads of {layers}: they draft and answer nothing", "a model"
            kv = "no KV"
        case "assistant":
            kind = f"gemma4_assistant, {about.num_layers} layers; an assistant: it drafts and answers nothing"
            target, kv = "a Gemma 4", "no KV"
    card = [
        ("architecture", kind),
        (
            "drafts for",
            f"{target} of hidden size {about.backbone_size:,}, where it is named: engine.speculative.model",
        ),
        ("quantisation", about.quantization),
        ("parameters", _counted(about.num_parameters)),
        ("vocabulary", f"{about.vocab_size:,} tokens{part}"),
        ("memory", f"{format_bytes(about.weight_bytes)}, and {kv}"),
        ("licence", about.licence),
        ("file", f"{path} ({format_bytes(about.file_bytes)})"),
    ]
    for key, value in card:
        typer.echo(f"{key:<13} {printable(value)}")


def _what_it_gives(about: EncoderDescription) -> tuple[str, list[tuple[str, str]]]:
    texts = f"of up to {about.max_tokens:,} tokens"
    if about.labels is None:
        size = ("embeds", f"texts {texts}, as {about.num_dimensions:,} dimensions")
        tasks = ", ".join(printable(name) for name, _ in about.tasks)
        named = [("tasks", tasks)] if tasks else []
        return "embeds", [size, ("pooling", f"{about.pooling}, scaled to length 1"), *named]
    if about.labels_steps:
        from pyagent.infrastructure.engine.encoders.tasks import STEP_MARK

        return "scores steps", [("scores", f"each step, up to its {STEP_MARK}, of texts {texts}")]
    if about.task == "rank":
        return "ranks documents", [("ranks", f"a query and a document {texts} together")]
    shown = ", ".join(printable(label) for label in about.labels[:8]) + (", ..." if len(about.labels) > 8 else "")
    what = "tokens of texts" if about.task == "token_classify" else "texts"
    return f"classifies {what}", [("classifies", f"{what} {texts}"), ("labels", f"{len(about.labels)}: {shown}")]


def _counted(number: int) -> str:
    return f"{number / 1e6:,.0f} million" if number >= 1_000_000 else f"{number:,}"


_CAPABILITIES = {"embed": "embeddings", "rank": "rerank", "classify": "classify", "token_classify": "token_classify"}


def _capabilities(task: ModelTask | None) -> dict[str, list[str]]:
    return {"capabilities": [_CAPABILITIES[task]]} if task and task in _CAPABILITIES else {}


@app.command("rm")
def remove(
    name: Annotated[str, typer.Argument(help="A model in the store, or one whose fetch broke off.")],
    config: Config = None,
) -> None:
    """Delete a model from the store, or what a fetch of it that broke off left."""
    store = _store(config)
    name = store.meant(name)
    num_bytes = store.remove(name)
    typer.echo(f"deleted {name}: {format_bytes(num_bytes)} are free again")


def _store(config: Path | None, watch: Watcher | None = None) -> ModelStore:
    from pyagent.infrastructure.models.store import ModelStore

    return ModelStore.of(read_settings(config), watch=watch)


def _contexts(longest: int) -> list[int]:
    return [*(context for context in _CONTEXTS if context < longest), longest]


def _options(config: Path | None) -> EngineOptions:
    from pyagent.assembly import make_host
    from pyagent.infrastructure.engine.plugin import options_of

    settings = read_settings(config)
    return options_of(settings, make_host(settings))


def _chat(path: Path, options: EngineOptions) -> tuple[str, tuple[str, ...]]:
    """Return which chat template the model is asked by, nothing where it has none, and what it can be asked for."""
    from pyagent.core.errors import ModelError
    from pyagent.infrastructure.engine.models.chat_format import abilities_of
    from pyagent.infrastructure.engine.tokens.loading import load_parts
    from pyagent.infrastructure.engine.tokens.template_choice import own_template

    chosen = options.tokenizer.chat_template
    try:
        template = own_template(path) if chosen == "auto" else None
        name = "the model's own" if template else ""
        if template is None:
            template = load_parts(path, options.tokenizer)[1]
            name = f"{template.built_in} (built in, by the model's tokens)" if template else ""
    except ModelError as error:
        return f"unknown, as the model cannot be loaded: {error}", ("completion",)
    if chosen != "auto":
        name = f"{'a text' if '{' in chosen else chosen} (engine.chat_template)"
    return name, abilities_of(template, options.dialect, options.dialects)


def _quantised(path: Path, own: str) -> tuple[dict[str, int], str]:
    """Return how large a folder's file would be as each of some types, or why there is none; nothing for others."""
    from pyagent.core.errors import ModelError
    from pyagent.infrastructure.models.quantize.mixture import PLAIN
    from pyagent.infrastructure.models.quantize.quantizing import planned_bytes

    if not path.is_dir() or own not in PLAIN:
        return {}, ""
    try:
        return planned_bytes(path, _QUANTISED), ""
    except ModelError as error:
        return {}, f"no: {str(error).removeprefix(f'{path}: ')}"


def _quantised_text(file_bytes: int, fit: Fit) -> str:
    return f"{format_bytes(file_bytes)} by `pyagent models quantize`; fits: {_fit_text(fit)}"


def _fits(
    path: Path,
    options: EngineOptions,
    config: Path | None,
    process_bytes: int,
    weight_bytes: int | None = None,
    kv_dtypes: tuple[KvDtype, ...] = _KV_DTYPES,
) -> tuple[int, list[Fit], str | None]:
    """Return the bytes the engine may use, whether the model fits them with each type of KV, or why it is refused.

    The process has `process_bytes` already. With `weight_bytes` it is as if the model's weights took so many.
    """
    from pyagent.core.errors import ConfigError, ModelError
    from pyagent.infrastructure.engine.memory.system import total_for
    from pyagent.infrastructure.engine.models.memory_estimate import Fit

    total_bytes = total_for(read_settings(config).engine.memory)
    fits: list[Fit] = []
    for kv_dtype in kv_dtypes:
        try:
            fits.append(Fit.of(path, kv_dtype, options, total_bytes, process_bytes, weight_bytes=weight_bytes))
        except ConfigError as error:
            if error.key != "engine.kv_dtype":  # the runner has others
                raise
        except ModelError as error:
            return total_bytes, [], str(error)
    return total_bytes, fits, None


def _fit_as_json(fit: Fit) -> dict[str, int | bool]:
    is_whole = fit.longest == fit.num_tokens
    return {"fits": is_whole, "num_tokens": fit.num_tokens, "needed_bytes": fit.needed_bytes, "longest": fit.longest}


def _fit_text(fit: Fit) -> str:
    context = f"{fit.num_tokens:,} tokens of {fit.kv_dtype}"
    needs = f"{format_bytes(fit.needed_bytes)} of {format_bytes(fit.total_bytes)} with {context}"
    if fit.longest == fit.num_tokens:
        return f"yes, {needs}"
    return f"no, {needs}; " + (f"{fit.longest:,} tokens fit" if fit.longest else "it cannot be loaded")


def _card(
    about: ModelDescription, path: Path, memory: dict[int, int], template: str, abilities: tuple[str, ...]
) -> list[tuple[str, str]]:
    needs = (f"{format_bytes(need)} with {context:,} tokens" for context, need in memory.items())
    head = " and one that drafts (MTP)" if about.has_mtp else ""
    counts = [f"{count} of {kind}" for kind, count in about.layer_kinds]
    kinds = f" ({', '.join(counts)})" if counts else ""
    names = (about.family, about.architecture)
    is_one_name = len({name.replace("_", "").replace("-", "") for name in names}) == 1
    family = "" if is_one_name else f"{about.family}, read as "
    head += "; an encoder-decoder: the encoder reads the prompt" if about.is_encoder_decoder else ""
    return [
        ("architecture", f"{family}{about.architecture}, {about.num_layers} layers{kinds}{head}"),
        ("quantisation", about.quantization),
        ("parameters", _counted(about.num_parameters)),
        ("vocabulary", f"{about.vocab_size:,} tokens"),
        ("context", f"{about.context_length:,} tokens"),
        ("memory", "; ".join([*needs, f"{about.kv_bytes_per_token:,} bytes of KV a token"])),
        ("licence", about.licence),
        ("capabilities", ", ".join(abilities)),
        ("runners", ", ".join(about.runners)),
        ("chat template", template or "none; completions only, or set engine.chat_template"),
        ("file", f"{path} ({format_bytes(about.file_bytes)})"),
    ]
