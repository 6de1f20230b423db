"""A tool server: it reads calls from standard input, a JSON object a line, and writes the results."""

import json
import secrets
import sys

SCHEMA = {
    "type": "object",
    "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 100}},
    "required": ["sides"],
}


def main() -> None:
    for line in sys.stdin:
        call = json.loads(line)
        if call["method"] == "tools/list":
            result: object = [{"name": "roll-dice", "description": "Rolls a die.", "schema": SCHEMA}]
        else:
            result = 1 + secrets.randbelow(call["arguments"]["sides"])
        print(json.dumps({"id": call["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
