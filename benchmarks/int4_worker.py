"""Runs in the environment of OpenVINO GenAI or onnxruntime-genai: one throughput of one model folder, printed in tok/s.

    python int4_worker.py openvino|onnxruntime FOLDER THREADS PROMPT NEW BATCH DEPTH

Without NEW it is that of prompts of PROMPT tokens, from an empty cache; otherwise that of NEW tokens for each of BATCH
sequences, after prompts of PROMPT or DEPTH tokens that are not part of the time. Greedy; the end token does not end.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

Run = Callable[[int, int, int], tuple[float, float]]
"""Prompt's tokens, new tokens and batch to the seconds until the first token and those after it."""


def prompts(num_tokens: int, batch: int) -> np.ndarray:
    """Random tokens, the same for every engine."""
    return np.random.default_rng(1234).integers(300, 32_000, (batch, num_tokens))


def openvino(folder: str, num_threads: int) -> Run:
    """OpenVINO GenAI's pipeline with its own choice of attention on a CPU."""
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=num_threads)

    def run(num_tokens: int, num_new: int, batch: int) -> tuple[float, float]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_new
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        ids = prompts(num_tokens, batch).astype(np.int64)
        given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        start = time.perf_counter()
        first = pipeline.generate(given, config).perf_metrics.get_ttft().mean / 1e3
        return first, time.perf_counter() - start - first  # its time per token of a batch is an eighth of eight's

    return run


def onnxruntime(folder: str, num_threads: int) -> Run:
    """onnxruntime-genai's generator."""
    import json

    import onnxruntime_genai

    config = onnxruntime_genai.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": num_threads}}}}))
    model = onnxruntime_genai.Model(config)

    def run(num_tokens: int, num_new: int, batch: int) -> tuple[float, float]:
        params = onnxruntime_genai.GeneratorParams(model)
        length = num_tokens + num_new
        params.set_search_options(batch_size=batch, do_sample=False, max_length=length, min_length=length)
        generator = onnxruntime_genai.Generator(model, params)
        start = time.perf_counter()
        generator.append_tokens(prompts(num_tokens, batch).astype(np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(num_new - 1):
            generator.generate_next_token()
        return first - start, time.perf_counter() - first

    return run


def main() -> None:
    engine, folder = sys.argv[1:3]
    num_threads, num_prompt, num_new, batch, depth = map(int, sys.argv[3:])
    run = {"openvino": openvino, "onnxruntime": onnxruntime}[engine](folder, num_threads)
    run(16, 4, batch)
    start_tokens = num_prompt or depth or 16
    first, after = run(start_tokens, num_new + 1 if num_new else 2, batch)
    print(num_new * batch / after if num_new else start_tokens * batch / first)


if __name__ == "__main__":
    main()
