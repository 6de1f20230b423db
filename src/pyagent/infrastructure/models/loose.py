"""Model files that somebody put into the store's folder: GGUF files, and folders of weights, by their names.

Other programs keep theirs as PUBLISHER/NAME/FILE.gguf, so folders are looked into a few levels deep. Opens no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

from pyagent.infrastructure.models.names import file_names, is_weights

_LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_MAX_DEPTH = 3
_MAX_ENTRIES = 10_000
"""A folder that holds more is hardly one of models; to go on would take seconds."""


def loose_models(folder: Path, manifest: str) -> dict[str, Path]:
    """Return the models that lie in a folder, by name; what stands beside a `manifest` is the store's own.

    Files that cannot be asked alone are left out: later parts of a model, and projectors of images.
    """
    paths = {str(path): path for path in _walk(folder, manifest)}
    return {name: paths[path] for path, name in file_names(sorted(paths)).items() if name != path}


def _walk(folder: Path, manifest: str) -> Generator[Path]:
    num_entries = 0
    for place, folders, files in os.walk(folder):
        num_entries += len(folders) + len(files)
        depth = len(Path(place).relative_to(folder).parts)
        is_whole = depth > 0 and "config.json" in files and any(map(is_weights, files))
        if num_entries > _MAX_ENTRIES:
            return
        if manifest in files:
            folders.clear()
        elif is_whole:
            folders.clear()
            yield Path(place)
        else:
            folders[:] = sorted(one for one in folders if depth < _MAX_DEPTH - 1 and not one.startswith("."))
            yield from (Path(place, file) for file in files if _is_model(file))


def _is_model(file: str) -> bool:
    is_whole = file.endswith(".gguf") and not file.startswith(".") and not _LATER_SHARD.search(file)
    return is_whole and "mmproj" not in file.casefold()
