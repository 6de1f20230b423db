"""llama.cpp's own server, from the wheel xllamacpp: MODEL TEMPLATE PORT CONTEXT SLOTS THREADS; it ends with a signal.

TEMPLATE is a file with a chat template.
"""

import signal
import sys
from pathlib import Path

from xllamacpp import CommonParams, Server

model, template, port, context, slots, threads = sys.argv[1:]
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
server = Server(params)
signal.pause()
