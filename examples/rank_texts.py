"""Documents by their relevance to a query."""

import pyagent

documents = [
    "The deposit is three months' rent.",
    "Either side may end the lease with three months' notice.",
    "Pets need the landlord's consent.",
]
with pyagent.Engine("all-minilm:l6-v2") as engine:
    for number, relevance in engine.rerank("How long is the notice?", documents):
        print(f"{relevance:.3f}", documents[number])
