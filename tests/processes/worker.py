"""One of several processes: ``python -m tests.processes.worker RANK NUM_PROCESSES PORT SCENARIO...``.

Runs functions of `tests.processes.scenarios` in a row and prints their results as one line of JSON each.
"""

import importlib
import json
import sys
import traceback

import jax


def main() -> None:
    rank, num_processes, port, *names = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", int(num_processes), int(rank), heartbeat_timeout_seconds=15, shutdown_timeout_seconds=20
    )
    scenarios = importlib.import_module("tests.processes.scenarios")
    for name in names:
        try:
            result = getattr(scenarios, name)(int(rank))
        except Exception:
            result = {"traceback": traceback.format_exc()}
        print("RESULT", json.dumps({"name": name, "result": result}), flush=True)


if __name__ == "__main__":
    main()
