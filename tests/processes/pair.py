"""Start two processes of four virtual CPU devices each, on loopback."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests import compiler_flags

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The output of one process, and how it ended."""

    results: dict[str, Any]
    exit_code: int
    text: str


def start(
    rank: int, num_processes: int, port: int, *names: str, devices: int = 4, folder: str = ""
) -> subprocess.Popen[str]:
    flags = " ".join([f"--xla_force_host_platform_device_count={devices}", *compiler_flags.quick_compiler()])
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "SCENARIO_FOLDER": folder}
    command = [sys.executable, "-m", "tests.processes.worker", str(rank), str(num_processes), str(port), *names]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def outcome(process: subprocess.Popen[str], timeout: float) -> Outcome:
    """Wait for the end of a process; killed after ``timeout`` seconds, and then an error."""
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    text, messages = process.communicate()
    timer.cancel()
    lines = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    results = {found["name"]: found["result"] for found in map(json.loads, lines)}
    return Outcome(results=results, exit_code=process.returncode, text=text + messages)


def run_pair(*names: str, timeout: float = 240, devices: int = 4, folder: str = "") -> list[Outcome]:
    """The outcomes of two processes that run the same scenarios; ``folder`` is for their files."""
    port = free_port()
    processes = [start(rank, 2, port, *names, devices=devices, folder=folder) for rank in range(2)]
    return [outcome(process, timeout) for process in processes]
