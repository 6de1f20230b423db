"""Talk to `pyagent serve` with OpenAI's client, streamed: python openai_client.py [BASE_URL]."""

import sys

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8321/v1"
client = OpenAI(base_url=base_url, api_key="none")
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Name three rivers."}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
