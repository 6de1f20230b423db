"""OpenAI's newer API: responses, which the server may keep and go on from."""
