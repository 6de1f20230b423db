"""Embeddings on behalf of an agent: counted, bounded by its deadline, and checked; made again by a resumed run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from pyagent.core.errors import BackendError, RequestError
from pyagent.core.fleet.containment import contained
from pyagent.core.fleet.events import Totals
from pyagent.core.messages import EmbedRequest, Usage
from pyagent.core.token_estimate import estimated_prompt_tokens

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context


async def embedded(context: Context, texts: Sequence[str]) -> list[list[float]]:
    """Return one vector for each text, all of one length; raises what the backend does, which may embed nothing."""
    if not texts:
        return []
    await context.check_open()
    run, usage = context.run, Usage()
    num_bytes = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    reservation = context.budget.reserve(estimated_prompt_tokens((), (), num_bytes))
    request = EmbedRequest(model="", input=list(texts), tenant=run.tenant, private=run.is_private)
    name = run.backend.name
    try:
        async with run.slots.slot(context.rank):
            with contained(f"the backend {name}", lambda text: BackendError(text, backend=name)):
                result = await context.deadline.bound(run.backend.embed(request), "an embedding")
        usage = result.usage
    finally:
        reservation.settle(usage)
        context.usage.add(Totals(prompt_tokens=usage.prompt_tokens, model_calls=1))
    _check(result.vectors, len(texts), name)
    return result.vectors


def _check(vectors: Sequence[Sequence[float]], num_texts: int, name: str) -> None:
    lengths = {len(vector) for vector in vectors}
    if len(vectors) != num_texts or len(lengths) != 1 or 0 in lengths:
        raise BackendError(f"{name} was asked for {num_texts} vectors of one length, got {len(vectors)}", backend=name)
    if not all(isfinite(value) for vector in vectors for value in vector):
        raise RequestError(f"{name} embeds a text as something that is no number", param="input")
