"""What a plugin declares that it needs, read from its source without running it.

    pyagent_capabilities = {"read": ["~/notes"], "write": [], "network": ["api.example.org:443"], "tools": ["search"],
                            "agents": ["summarize"]}

stands at the top of its module, as a literal. Nothing is declared where it is missing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Set
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from pyagent.core.errors import PluginError

NAME = "pyagent_capabilities"
_MOST_BYTES = 1 << 20


class Capabilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be done: folders and files to read, or to read and write; `host:port` to connect to; what to call.

    That is tools of the run, and agents to spawn.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()

    def resolved(self) -> Capabilities:
        """Return the same with whole paths: `~` and links are followed now, not where the plugin runs.

        What stands below a folder that may be written is allowed by that, and left out: the plugin could have put a
        link to any other place there.
        """
        written = {_real(Path(one)) for one in self.write}
        read, write = (
            tuple(str(_real(Path(one))) for one in each if not _stands_below(Path(one), written))
            for each in (self.read, self.write)
        )
        return msgspec.structs.replace(self, read=read, write=write)

    def ports(self) -> tuple[int, ...]:
        """Return the ports of `network`."""
        return tuple(int(address.rpartition(":")[2]) for address in self.network)


def source_of_plugin(plugin: str, target: str) -> Path:
    """Return the file of a plugin's module, `module` or `module:object`. Raises `PluginError` where there is none."""
    path = source_of(target.partition(":")[0].strip())
    if path is None:
        raise PluginError(f"plugin {plugin!r} has no source that could be read for what it declares", plugin=plugin)
    return path


def declared(plugin: str, path: Path) -> Capabilities:
    """Return what a plugin's source declares. Raises `PluginError` for what is no declaration; imports nothing."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise PluginError(f"plugin {plugin!r} has a module of more than a megabyte: {path}", plugin=plugin)
        values = list(_assigned(ast.parse(path.read_bytes())))
        found = msgspec.convert(_literal(values[-1]) if values else {}, Capabilities)
        _check_network(found)
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        names = '"network": ["HOST:PORT"], "tools": [...], "agents": [...]'
        expected = f'{NAME} = {{"read": [...], "write": [...], {names}}}'
        raise PluginError(f"plugin {plugin!r}: {path}: {error}; expected {expected}", plugin=plugin) from error
    return found.resolved()


def source_of(module: str) -> Path | None:
    """Return a module's file, looked for as an import would, without importing the packages that it is in."""
    paths: list[str] | None = None
    origin: str | None = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, paths if paths is not None else sys.path)
        if spec is None:
            return None
        paths, origin = list(spec.submodule_search_locations or ()), spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def _real(path: Path) -> Path:
    return path.expanduser().resolve()


def _stands_below(path: Path, folders: Set[Path]) -> bool:
    """Whether the place where a path stands, whatever it leads to, is one of the folders or below one."""
    return any(
        not folders.isdisjoint({real, *real.parents}) for real in map(_real, path.expanduser().absolute().parents)
    )


def _assigned(tree: ast.Module) -> Iterator[ast.expr]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == NAME:
                yield value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name == NAME:
                yield value
            case _:
                pass


def _literal(node: ast.expr) -> object:
    """Return the value of a literal. Raises `ValueError` for what only running the module would tell."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"line {node.lineno} has no literal, and the module is not run to read it") from None


def _check_network(found: Capabilities) -> None:
    for address in found.network:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"network has {address!r:.80}, expected HOST:PORT")
