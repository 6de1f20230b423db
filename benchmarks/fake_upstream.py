"""A fake OpenAI server in a process of its own: answers at once, whole or streamed, and misbehaves on demand.

    python benchmarks/fake_upstream.py PORT [--pieces N] [--faults 0.3] [--seed 1]

The answer is a function of the last question, so that whoever asks can check each one; a request with tools gets a
call after it. With `--faults` that part of the requests is refused, hangs, is dropped in the middle, or gets garbage;
POST /faults with a number changes it. Plain asyncio: as little of its own time as can be. It knows nothing of PyAgent.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random

STALL_SECONDS = 60.0
CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}


def answer_to(text: str, num_pieces: int) -> list[str]:
    """The pieces of the one right answer to a message."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return [f"{digest[at % 60 : at % 60 + 4]} " for at in range(num_pieces)]


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    body |= {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Upstream:
    def __init__(self, num_pieces: int, part_faulty: float, seed: int) -> None:
        self.num_pieces = num_pieces
        self.part_faulty = part_faulty
        self.draw = random.Random(seed)
        self.num_asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request of a connection; False when it is to be closed."""
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        body = await reader.readexactly(length)
        if path == b"/faults":
            self.part_faulty = float(body)
            return await self.whole(writer, {"part": self.part_faulty})
        if not path.endswith(b"/chat/completions"):
            return await self.whole(writer, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        self.num_asked += 1
        asked = json.loads(body)
        pieces, skipped = self.pieces(asked["messages"])
        fault = self.draw.choice(("refuse", "hang", "drop", "stall", "garbage", "empty", "busy"))
        is_faulty = self.draw.random() < self.part_faulty
        if is_faulty and fault in {"refuse", "busy", "hang", "empty"}:
            return await self.fail(writer, fault)
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "".join(pieces)}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            usage = {"prompt_tokens": 3, "completion_tokens": len(pieces), "total_tokens": 3 + len(pieces)}
            common = {"id": "c", "object": "chat.completion", "created": 1, "model": "fake"}
            return await self.whole(writer, common | {"choices": choices, "usage": usage})
        calls = [CALL] if asked.get("tools") else []
        return await self.stream(writer, pieces[skipped:], fault if is_faulty else "", calls)

    def pieces(self, messages: list[dict[str, object]]) -> tuple[list[str], int]:
        """The answer, and how many of its pieces the conversation has already as its end."""
        begun = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        question = next(message["content"] for message in reversed(messages) if message["role"] == "user")
        pieces = answer_to(str(question), self.num_pieces)
        return pieces, len(str(begun)) // 5

    async def fail(self, writer: asyncio.StreamWriter, fault: str) -> bool:
        if fault == "hang":
            await asyncio.sleep(STALL_SECONDS)
            return False
        if fault == "empty":
            return False
        status = "503 Service Unavailable" if fault == "refuse" else "429 Too Many Requests"
        return await self.whole(writer, {"error": {"message": fault}}, status)

    async def whole(self, writer: asyncio.StreamWriter, body: object, status: str = "200 OK") -> bool:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        return True

    async def stream(self, writer: asyncio.StreamWriter, pieces: list[str], fault: str, calls: list[object]) -> bool:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        events = [chunk({"content": piece}) for piece in pieces]
        events += [chunk({"tool_calls": calls})] if calls else []
        at = self.draw.randrange(len(events) + 1) if fault else len(events)
        sent = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events[:at])
        writer.write(head + sent)
        await writer.drain()
        if fault == "stall":
            await asyncio.sleep(STALL_SECONDS)
        if fault == "garbage":
            junk = b'data: {"choices": [{"delta": \xff\xfe}\n\n'
            writer.write(b"%x\r\n%s\r\n" % (len(junk), junk))
            await writer.drain()
        if fault:
            return False
        end = chunk({}, "tool_calls" if calls else "stop") + b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()
        return True


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--pieces", type=int, default=8)
    parser.add_argument("--faults", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    upstream = Upstream(asked.pieces, asked.faults, asked.seed)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", asked.port, backlog=4096)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
