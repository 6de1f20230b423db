"""A PyAgent plugin with one dialect: a model of ours writes `@call NAME {...}@end`, and thinks before `@answer`."""

from collections.abc import Sequence

from pyagent.plugin import Dialect, NamedCalls, Reasoning, TagDialect, hookimpl

ATCALL = TagDialect(
    name="atcall",
    models="our own fine-tune",
    clues=("@call", "@end"),
    reasoning=Reasoning("@think", "@answer"),
    calls=NamedCalls("@call", ("@end",), (" {name} ",), separator="\n"),
)


@hookimpl
def pyagent_register_dialects() -> Sequence[Dialect]:
    return [ATCALL]
