"""What can be told of the engine's settings before a model is loaded: names and paths in them that lead nowhere.

None of it keeps a server from starting: the file may come later, or another link of the chain answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyagent.core.nearest import did_you_mean
from pyagent.infrastructure.models.names import is_path, place_of

if TYPE_CHECKING:
    from pyagent.core.settings import Settings
    from pyagent.infrastructure.models.store import ModelStore


def missing_adapters(settings: Settings) -> list[str]:
    """Return a sentence for each adapter of `engine.adapters` whose path leads to nothing."""
    text = "engine.adapters: there is nothing at {}; requests for {!r} are refused until there is"
    adapters = settings.engine.adapters.items()
    return [text.format(path, name) for name, path in adapters if not os.path.exists(place_of(path))]


def draft_faults(settings: Settings) -> list[str]:
    """Return what can be told of `engine.speculative.model` before anything is loaded: names and files that are wrong.

    Loading tells the rest: whether the vocabularies are the same, and whether there is room.
    """
    from pyagent.infrastructure.engine.models.draft_loading import fault_of_draft
    from pyagent.infrastructure.models.store import ModelStore

    speculative = settings.engine.speculative
    if speculative.method != "draft_model":
        return []
    store = ModelStore.of(settings)
    drafts = dict.fromkeys(store.named.get(draft, draft) for draft in speculative.model.values())
    return [fault for draft in drafts if (fault := fault_of_draft(draft, store))]


def unknown_models(settings: Settings) -> list[str]:
    """Return a sentence for each key of a table by model that names none: none that is here, nor that is to be served.

    What a repository of a hub has is not asked.
    """
    keys = [(table, key) for table, keys in _tables(settings).items() for key in keys]
    if not keys:
        return []
    from pyagent.infrastructure.models.store import ModelStore

    store = ModelStore.of(settings)
    known = {*_served(settings, store), *store.catalog, *(model.manifest.name for model in store.list())}
    otherwise = "`pyagent models list` has the names; a file has its path"
    return [
        f"{table}: there is no model {key!r}; {did_you_mean(key, known, otherwise)}"
        for table, key in keys
        if key not in known and not key.startswith("hf:") and not (is_path(key) and os.path.exists(place_of(key)))
    ]


def _tables(settings: Settings) -> Mapping[str, list[str]]:
    """Return the models that tables of the settings are by, the tables in use alone."""
    engine, speculative = settings.engine, settings.engine.speculative
    drafted = speculative.model if speculative.method == "draft_model" else ()
    adapted = dict.fromkeys(key.rpartition(":")[0] for key in engine.adapters)
    return {
        "engine.speculative.model": [model for model in drafted if model],
        "engine.chat_templates": [*engine.chat_templates],
        "engine.adapters": [model for model in adapted if model],
    }


def _served(settings: Settings, store: ModelStore) -> Iterator[str]:
    """Yield the models that the settings serve, by their paths too."""
    from pyagent.core.backends import LinkSpec

    yield from settings.engine.models
    yield from (link.target for link in (LinkSpec.parse(one.use) for one in settings.links) if link.scheme == "native")
    yield from store.named.values()
