"""Both backends beside one device: results, and the collectives of the compiled programs.

    python -m benchmarks.backends                              # every tiny model, three points of its frontier
    python -m benchmarks.backends gpt-tiny moe-tiny --points all --dtype float64
    python -m benchmarks.backends --topology h100:8            # compiled without its devices: collectives alone
    python -m benchmarks.backends --processes 2                # of four devices each, on loopback

A line for each plan: the largest difference from one device relative to the largest value of an array, by backend, and
the collectives of the manual program that the plan does not name (``=``: none, bytes by kind and group of devices
agree). In float32 models take steps of SGD, because Adam follows the rounding of gradients that are zero.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.compiler_flags import NUM_DEVICES, devices, quick_compiler

if TYPE_CHECKING:
    import jaxplan
    from benchmarks.models import ModelSpec

TOLERANCE = {"float32": 1e-5, "float64": 1e-6}
"""Of a result, relative to the largest value of its array. Some models compute tables of positions in float32 always;
results of the others differ by less than 1e-9 in float64."""
LEAST = 1e-3
"""Arrays of smaller values (a gradient that is zero but for rounding) are compared as if they held this."""
POINTS = ("fastest", "knee", "leanest")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each plan; 1 if results or collectives differ."""
    options = _parser().parse_args(arguments)
    if options.processes > 1 and options.rank is None:
        return _in_processes(sys.argv[1:] if arguments is None else arguments, options.processes)
    _apply_settings(options)
    from benchmarks.models import MODELS

    names = options.models or [name for name in MODELS if "-tiny" in name]
    bad = 0
    for name in names:
        start = time.perf_counter()
        lines = check_model(_spec(MODELS[name], options.dtype), options)
        bad += sum(not line.ok for line in lines)
        if options.rank:
            continue
        for line in lines:
            print(f"{name:22} {line}", flush=True)
        print(f"{name:22} {len(lines)} plans in {time.perf_counter() - start:.0f} s", flush=True)
    if not options.rank:
        print(f"{len(names)} models on {options.topology}, {options.dtype}: {bad} plans differ")
    return 1 if bad else 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One plan under the manual backend.

    Attributes:
      errors: backend -> largest relative difference from one device, and the path of that result.
      collectives: the rows of the audit that do not agree; empty: all do.
    """

    plan: str
    tolerance: float
    errors: dict[str, tuple[float, str]]
    collectives: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.collectives and all(error <= self.tolerance for error, _ in self.errors.values())

    def __str__(self) -> str:
        errors = ", ".join(
            f"{backend} {error:.1e} ({path})" for backend, (error, path) in self.errors.items()
        )
        return f"{'ok ' if self.ok else 'BAD'} {errors}; {'; '.join(self.collectives) or '='}  {self.plan}"


def check_model(spec: ModelSpec, options: argparse.Namespace) -> list[Line]:
    """The lines of one model."""
    import jax

    jax.clear_caches()
    subject = Subject(spec, options.topology)
    frontier = subject.frontier()
    if options.points == "all":
        plans = list(frontier.points)
    else:
        plans = [frontier.choose(point) for point in POINTS]
    lines, seen = [], []
    for plan in plans:
        if any(plan.is_same_program(other) for other in seen):
            continue
        seen.append(plan)
        lines.append(subject.line(plan, options.backends, TOLERANCE[options.dtype]))
    return lines


class Subject:
    """A model, its arguments, and the results of one device, computed when they are first asked for."""

    def __init__(self, spec: ModelSpec, topology: str) -> None:
        self.spec, self.topology = spec, topology
        self.step = spec.make_step(spec.config)

    def frontier(self) -> jaxplan.Frontier:
        import jaxplan

        args = self.spec.abstract_args()
        return jaxplan.plan(
            self.step, *args, topology=self.topology, memory="60GiB", donate_argnums=self.spec.donate_argnums
        )

    def line(self, plan: Any, backends: Sequence[str], tolerance: float) -> Line:
        if not self.topology.startswith("cpu"):
            report = plan.compile_report(backend="shard_map")
            return Line(
                plan=plan.summary, tolerance=tolerance, errors={}, collectives=_rows(plan, report.collectives)
            )
        errors, rows = {}, ()
        for backend in backends:
            found, text = self.run(plan, backend)
            errors[backend] = max(map(_difference, self.paths, found, self.expected))
            if backend == "shard_map":
                from jaxplan.audit._hlo import collectives

                rows = _rows(plan, collectives(text))
        return Line(plan=plan.summary, tolerance=tolerance, errors=errors, collectives=rows)

    def run(self, plan: Any, backend: str) -> tuple[list[Any], str]:
        """Leaves of the results, and of the changed state, and the compiled program."""
        planned = plan.jit(backend=backend)
        args = self.args()
        result = planned(*args)
        return self.leaves(args, result), planned._compiled.as_text()  # compiled once: it is the one that ran

    def args(self) -> tuple[Any, ...]:
        import jax

        batch = jax.jit(functools.partial(self.spec.make_batch, self.spec.config))(jax.random.key(0))
        return *self.spec.make_state(self.spec.config), batch

    def leaves(self, args: Sequence[Any], result: Any) -> list[Any]:
        import jax

        results = (args[:-1], result) if self.spec.updates == "in place" else result
        self.paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(results)]
        return [_numbers(x) for x in jax.tree.leaves(results)]

    @functools.cached_property
    def expected(self) -> list[Any]:
        import jax

        if self.spec.updates == "in place":
            from flax import nnx

            jitted: Any = nnx.jit(self.step)
        else:
            jitted = jax.jit(self.step)
        args = self.args()
        return self.leaves(args, jitted(*args))


def _rows(plan: Any, collectives: Sequence[Any]) -> tuple[str, ...]:
    from jaxplan.audit import judge_collectives, predicted_program

    rows, _ = judge_collectives(predicted_program(plan), collectives)
    return tuple(
        f"{row.kind} over {' '.join(row.axes) or row.group_size}: planned {row.predicted_count} of "
        f"{row.predicted_bytes} B, compiled {row.compiled_count} of {row.compiled_bytes} B"
        f"{' at ' + row.examples[0] if row.examples else ''}"
        for row in rows
        if not row.ok
    )


def _numbers(x: Any) -> Any:
    import jax
    import numpy as np

    is_key = jax.numpy.issubdtype(jax.numpy.result_type(x), jax.dtypes.prng_key)
    x = jax.random.key_data(x) if is_key else x
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        from jax.experimental import multihost_utils

        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)


def _difference(path: str, found: Any, expected: Any) -> tuple[float, str]:
    """Largest difference relative to the largest value of the array; infinite where one has what the other lacks."""
    import numpy as np

    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf"), path
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(
            (a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf)
        )
    largest = np.max(np.abs(b), where=np.isfinite(b), initial=0.0)
    return float(np.max(apart, initial=0.0) / max(largest, LEAST)), path


def _spec(spec: ModelSpec, dtype: str) -> ModelSpec:
    """The model, computing in one dtype."""
    names = {field.name for field in dataclasses.fields(spec.config)}
    fields = {"dtype": dtype, "param_dtype": dtype, **({"optimizer": "sgd"} if dtype == "float32" else {})}
    return spec.override(**{name: value for name, value in fields.items() if name in names})


def _apply_settings(options: argparse.Namespace) -> None:
    import os

    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join([devices(NUM_DEVICES // options.processes), *quick_compiler()])
    import jax

    jax.config.update("jax_enable_x64", options.dtype == "float64")
    if options.rank is not None:
        options.topology = f"cpu:{options.processes}x{NUM_DEVICES // options.processes}"
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{options.port}", options.processes, options.rank)


def _in_processes(arguments: Sequence[str], number: int) -> int:
    """The same command in so many processes, which share the devices; the first one prints."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.backends", *arguments, "--port", str(port)]
    processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(number)]
    return max(abs(process.wait()) for process in processes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.backends", description="Both backends beside one device."
    )
    parser.add_argument("models", nargs="*", help="names of the registry; default: every tiny one")
    parser.add_argument("--points", choices=("three", "all"), default="three", help="of the frontier")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="float32")
    parser.add_argument("--topology", default="cpu:8", help="a GPU's is compiled without its devices")
    parser.add_argument("--processes", type=int, default=1, help="that share the eight devices, on loopback")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backends", nargs="+", choices=("shard_map", "jit"), default=["shard_map"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
