"""The neurons and layers behind each token of an answer."""

import pyagent

sampling = pyagent.SamplingParams(temperature=0, top_activations=2, logit_lens=1, max_tokens=20)
with pyagent.Engine("smollm2:135m") as engine:
    answer = engine.chat("What is the capital of France?", sampling)
    for token in answer.activations():
        print(token.token, token.neurons[0].promotes, token.layers[-2][0].token)
