"""Embeds and ranks by llama.cpp's own server, from the wheel xllamacpp: a line of JSON in, a line of JSON out.

In: `path` of a model, `texts`, and `documents` for the query that the first text is, where the model ranks. Out:
`vectors` of the texts, or a number for each document as `ranks`; or the `error` with which llama.cpp refuses the file.
"""

import json
import sys

from xllamacpp import CommonParams, Server, llama_flash_attn_type, llama_pooling_type


def server(path: str, *, ranks: bool) -> Server:
    """Return llama.cpp's server over a model file."""
    params = CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.fit_params = False
    params.warmup = False
    params.embedding = True
    if ranks:
        params.pooling_type = llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    return Server(params)


def ranked(peer: Server, query: str, documents: list[str]) -> list[float]:
    """Return each document's number."""
    found = peer.handle_rerank({"query": query, "documents": documents})["results"]
    return [one["relevance_score"] for one in sorted(found, key=lambda one: one["index"])]


for line in sys.stdin:
    asked = json.loads(line)
    try:
        documents = asked["documents"]
        peer = server(asked["path"], ranks=bool(documents))
        if documents:
            answer: dict[str, object] = {"ranks": ranked(peer, asked["texts"][0], documents)}
        else:
            told = peer.handle_embeddings({"input": asked["texts"]})["data"]
            answer = {"vectors": [one["embedding"] for one in told]}
        del peer
    except RuntimeError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
