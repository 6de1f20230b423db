"""llama.cpp's own server, from the wheel xllamacpp: MODEL TEMPLATE PORT CONTEXT SLOTS THREADS; it ends with a signal.

TEMPLATE is a file with a chat template. A seventh word is JSON with further settings of `CommonParams`, by name.
"""

import json
import signal
import sys
from pathlib import Path

from xllamacpp import CommonParams, Server, llama_flash_attn_type

model, template, port, context, slots, threads, *more = sys.argv[1:]
params = CommonParams()
params.model.path = model
params.chat_template = Path(template).read_text()
params.use_jinja = True
params.hostnames = ["127.0.0.1"]
params.port = int(port)
params.n_ctx = int(context) * int(slots)  # shared out among the slots
params.n_parallel = int(slots)
params.n_gpu_layers = 0
params.cpuparams.n_threads = int(threads)
params.cpuparams_batch.n_threads = int(threads)
for name, value in json.loads(more[0] if more else "{}").items():
    setattr(params, name, llama_flash_attn_type(value) if name == "flash_attn_type" else value)
server = Server(params)
signal.pause()
