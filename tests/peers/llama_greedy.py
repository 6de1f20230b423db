"""Continues prompts by llama.cpp's own server, from the wheel xllamacpp: a line of JSON in, a line of JSON out.

In: `path` of a model, `prompts` of tokens, `num_tokens`, the `banned` tokens, which are never taken, and `texts`. Out,
for each prompt: its `tokens`, and for each of them the most `likely` ones as `[token, log probability]`; and the tokens
of each text; or the `error` with which llama.cpp refuses the file. Keys and values are kept in float32.
"""

import json
import sys
from urllib.request import Request, urlopen

from xllamacpp import CommonParams, Server, ggml_type, llama_flash_attn_type


def server(path: str) -> Server:
    """Return llama.cpp's server over a model file."""
    params = CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 512
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = ggml_type.GGML_TYPE_F32
    params.flash_attn_type = llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.fit_params = False
    params.warmup = False
    params.use_jinja = True
    return Server(params)


def continued(peer: Server, prompt: list[int], num_tokens: int, banned: list[int]) -> dict[str, object]:
    """Return the greedy tokens after a prompt, with the most likely ones at each place."""
    asked = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "n_probs": 8, "cache_prompt": False}
    asked["logit_bias"] = [[token, False] for token in banned]
    places = peer.handle_completions(asked)["choices"][0]["logprobs"]["content"]
    likely = [[[one["id"], one["logprob"]] for one in place["top_logprobs"]] for place in places]
    return {"tokens": [place["id"] for place in places], "likely": likely}


def tokens_of(peer: Server, text: str) -> list[int]:
    """Return a text's tokens, with those that begin it; markers in it are markers."""
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    asked = Request(f"{peer.listening_address}/tokenize", body, {"Content-Type": "application/json"})
    with urlopen(asked) as answer:
        return json.load(answer)["tokens"]


for line in sys.stdin:
    asked = json.loads(line)
    try:
        peer = server(asked["path"])
        answer: dict[str, object] = {
            "answers": [continued(peer, one, asked["num_tokens"], asked["banned"]) for one in asked["prompts"]],
            "tokens": [tokens_of(peer, text) for text in asked["texts"]],
        }
        del peer
    except RuntimeError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
