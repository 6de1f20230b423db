"""Hold a model to a choice and to a JSON schema."""

import json

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8321/v1", api_key="none")
review = [{"role": "user", "content": "Is this review positive? 'I would buy it again.'"}]
schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}

# One of some texts: PyAgent's own, so the client sends it as an extra field.
answer = client.chat.completions.create(
    model="default",
    messages=review,
    extra_body={"response_format": {"type": "choice", "choice": ["positive", "negative"]}},
)
print(answer.choices[0].message.content)

# JSON that follows a schema: OpenAI's own field.
answer = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Name a large city and how many people live there."}],
    response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    max_tokens=80,
)
print(json.loads(answer.choices[0].message.content or "{}")["city"])

# A regular expression, in the field that clients of vLLM send; a grammar goes into `guided_grammar` or `grammar`.
answer = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Which day is Christmas in 2030? Answer with a date."}],
    extra_body={"structured_outputs": {"regex": r"\d{4}-\d{2}-\d{2}"}},
)
print(answer.choices[0].message.content)
