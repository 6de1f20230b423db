"""Runs llama.cpp's own server, from the wheel xllamacpp, over the model file argv[1] until standard input closes."""

import sys

from xllamacpp import CommonParams, Server, llama_pooling_type

params = CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = 0 if len(sys.argv) < 3 else int(sys.argv[2])
params.n_ctx = 2048
params.n_parallel = 2
params.n_gpu_layers = 0
params.cpuparams.n_threads = 1
if len(sys.argv) > 3:
    params.embedding = True
    params.pooling_type = llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
params.use_jinja = True
params.warmup = False
server = Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
