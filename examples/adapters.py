"""One question to a model, and to the model with an adapter."""

import pyagent
from pyagent import ChatRequest, Message, SamplingParams

asked = [Message("user", "Name three rivers.")]
with pyagent.Engine("smollm2:135m", adapters={"pirate": "./pirate"}) as engine:
    for model in ("smollm2:135m", "smollm2:135m:pirate"):
        request = ChatRequest(model=model, messages=asked, sampling=SamplingParams(temperature=0, max_tokens=16))
        print(model, engine.chat(request).text, sep=": ")
