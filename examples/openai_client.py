"""Talk to `pyagent serve` with OpenAI's client, streamed."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8321/v1", api_key="none")
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Name three rivers."}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
