"""The embedded engine in a program without an event loop: the same words, without `await`."""

import sys

from pyagent import Engine, SamplingParams


def main(model: str = "smollm2:135m") -> list[str]:
    greedy = SamplingParams(temperature=0.0, max_tokens=16)
    with Engine(model, threads=2) as engine:
        answers = engine.chat_all(["Name a colour.", "Name a river.", "Name a tree."], greedy)
        for answer in answers:
            print(answer.text)
        for delta in engine.stream("Name three rivers.", greedy):
            print(delta.content, end="", flush=True)
        print()
        return [answer.text for answer in answers]


if __name__ == "__main__":
    main(*sys.argv[1:])
