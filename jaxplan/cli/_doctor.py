"""`jaxplan doctor`: versions, devices, and a small plan run here, in one report to attach to a bug."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxplan.cli._output import add_output_arguments, print_result, use_virtual_devices
from jaxplan.core._files import check_writable, write_whole
from jaxplan.core._units import format_bandwidth, format_bytes, format_seconds
from jaxplan.errors import JaxplanError

if TYPE_CHECKING:
    from jaxplan.mesh import Topology

_HELP = "print versions and devices, and run a small plan: predicted beside measured"
_DESCRIPTION = (
    "Print versions, the devices and links found, and a small step that is planned and run here: its results against "
    "one device, predicted time and memory beside measured. Exit code 1 where something is wrong here."
)
_PACKAGES = (
    "jaxplan", "jax", "jaxlib", "numpy", "scipy", "networkx", "rich", "flax", "optax", "matplotlib", "plotly",
    "jinja2", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu",
)  # fmt: skip
_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "JAX_ENABLE_X64", "CUDA_VISIBLE_DEVICES")
_WIDTH, _EXAMPLES_PER_DEVICE = 256, 32
_RUNS = 5
_TOLERANCE = 1e-3
"""Relative difference of results that the order of float32 additions explains, in matrices of this size."""


def add_doctor_command(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    doctor = commands.add_parser("doctor", help=_HELP, description=_DESCRIPTION)
    doctor.add_argument("--output", metavar="FILE", help="write the report as JSON too")
    doctor.add_argument("--topology", metavar="CHIP:SHAPE", help="of the devices; default: recognised by their kind")
    doctor.add_argument(
        "--virtual-devices", type=int, metavar="N", help="look at so many virtual devices of this host's CPU"
    )
    add_output_arguments(doctor)
    doctor.set_defaults(run=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Look, run, print, and write the report."""
    from jaxplan.mesh import parse_topology

    if arguments.output:
        check_writable(arguments.output)
    if arguments.virtual_devices is not None:
        use_virtual_devices(arguments.virtual_devices)
    if arguments.topology:
        parse_topology(arguments.topology)  # a misspelling is no problem of the machine
    report = examine(arguments.topology)
    if arguments.output:
        write_whole(arguments.output, json.dumps(report, indent=1, sort_keys=True) + "\n")
    print_result(arguments, lambda: _text(report), lambda: report)
    return 1 if report["problems"] else 0


def examine(topology: str | None) -> dict[str, Any]:
    """The report as plain data; whatever fails is one of its ``problems``, and the rest is still there."""
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": _versions(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "devices": [],
        "topology": None,
        "other_devices": [],
        "run": None,
        "problems": [],
    }
    found = _attempt(report, "devices", _devices)
    report["devices"] = found or []
    machine = _attempt(report, "topology", lambda: _machine(topology)) if found else None
    if machine is not None:
        report["topology"] = _topology_data(machine)
        report["other_devices"] = _other_devices(machine)
        report["run"] = _attempt(report, "a small plan", lambda: _run(machine))
    if report["run"] and report["run"]["relative_difference"] > _TOLERANCE:
        report["problems"].append(
            f"results: the planned step differs from one device by {report['run']['relative_difference']:.1e} "
            f"of the largest value; at most {_TOLERANCE:.0e} is expected"
        )
    return report


def _attempt(report: dict[str, Any], what: str, do: Callable[[], Any]) -> Any:
    """The result, or None with the error among the problems: a report is wanted most where something fails."""
    try:
        return do()
    except Exception as error:
        name = "" if isinstance(error, JaxplanError) else f"{type(error).__name__}: "
        report["problems"].append(f"{what}: {name}{error}")
        return None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _devices() -> list[dict[str, Any]]:
    import jax

    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for device in jax.devices():
        key = device.platform, device.device_kind, device.process_index
        limit = (device.memory_stats() or {}).get("bytes_limit")
        entry = {"platform": key[0], "kind": key[1], "process": key[2], "count": 0, "memory_limit_bytes": limit}
        found.setdefault(key, entry)["count"] += 1
    return list(found.values())


def _machine(topology: str | None) -> Topology:
    from jaxplan.mesh import Topology

    return Topology.parse(topology) if topology else Topology.detect()


def _other_devices(topology: Topology) -> list[str]:
    """Kinds of the devices present that the topology does not have: a plan of it runs on them, in another time."""
    import jax

    from jaxplan.mesh import other_kinds

    return other_kinds(topology.chip, jax.devices())


def _topology_data(topology: Topology) -> dict[str, Any]:
    return {
        "name": topology.name,
        "memory_limit_bytes": topology.memory_limit_bytes,
        "figures": topology.chip.source,
        "links": [
            {
                "level": level.name,
                "size": level.size,
                "bandwidth_bytes_per_second": level.link.bandwidth_bytes_per_second,
                "latency_seconds": level.link.latency_seconds,
            }
            for level in topology.levels
        ],
    }


def _run(topology: Topology) -> dict[str, Any]:
    """Plan two dense layers, run them on one device and as planned, and compare."""
    import jax
    import numpy as np

    import jaxplan
    from jaxplan.partition import compiled_bytes

    step, arguments = _small_step(topology.num_devices)
    plan = jaxplan.plan(step, *arguments, topology=topology, donate_argnums=(), remat=False).leanest()
    planned, alone = plan.jit(), jax.jit(step)
    placed = planned.shard(*arguments)
    expected = jax.tree.leaves(alone(*arguments))
    results = jax.tree.leaves(planned(*placed))
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, results, strict=True)]
    return {
        "plan": plan.summary,
        "relative_difference": max(float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) or 1)) for a, b in pairs),
        "predicted_seconds": plan.time_seconds,
        "measured_seconds": _seconds(lambda: planned(*placed)),
        "one_device_seconds": _seconds(lambda: alone(*arguments)),
        "predicted_bytes": plan.memory_bytes,
        "compiled_bytes": compiled_bytes(planned.lower(*placed).compile()),
    }


def _small_step(num_devices: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jnp.tanh(batch["x"] @ params["up"])
            return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    random = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(random.normal(0, shape[0] ** -0.5, shape), jnp.float32)

    examples = _EXAMPLES_PER_DEVICE * num_devices
    params = {"up": array(_WIDTH, 4 * _WIDTH), "down": array(4 * _WIDTH, _WIDTH)}
    return step, (params, {"x": array(examples, _WIDTH), "y": array(examples, _WIDTH)})


def _seconds(run: Callable[[], Any]) -> float:
    """Median of a few runs; the first, which may compile, is not counted."""
    import jax

    jax.block_until_ready(run())
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _text(report: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    lines = [f"python    {report['python']} on {report['system']}", f"packages  {packages}"]
    lines += [f"variable  {name}={value}" for name, value in report["environment"].items()]
    for entry in report["devices"]:
        limit = entry["memory_limit_bytes"]
        memory = f", {format_bytes(limit)} each" if limit else ""
        lines.append(f"devices   {entry['count']} x {entry['kind']} ({entry['platform']}){memory}")
    if (machine := report["topology"]) is not None:
        lines.append(f"topology  {machine['name']}, figures: {machine['figures']}")
        lines += [
            f"link      {link['level']}: {link['size']}, {format_bandwidth(link['bandwidth_bytes_per_second'])}, "
            f"{format_seconds(link['latency_seconds'])}"
            for link in machine["links"]
        ]
    lines += _run_lines(report)
    lines += [f"problem   {problem}" for problem in report["problems"]]
    return "\n".join([*lines, _verdict(report)])


def _run_lines(report: dict[str, Any]) -> list[str]:
    if (run := report["run"]) is None:
        return []
    compiled = "not known" if run["compiled_bytes"] is None else format_bytes(run["compiled_bytes"])
    others, name = report["other_devices"], report["topology"]["name"]
    where = f" on {', '.join(others)}, predicted for {name}" if others else ""
    lines = [
        f"plan      {run['plan']}",
        f"results   differ from one device by {run['relative_difference']:.1e} of the largest value",
        f"time      {format_seconds(run['predicted_seconds'])} predicted, "
        f"{format_seconds(run['measured_seconds'])} measured{where}; "
        f"one device {format_seconds(run['one_device_seconds'])} measured",
        f"memory    {format_bytes(run['predicted_bytes'])} per device predicted, {compiled} as compiled{where}",
    ]
    if others:
        lines.append(
            f"note      these devices are {', '.join(others)}, not those of {name}: predicted and measured say nothing "
            "about each other"
        )
    return lines


def _verdict(report: dict[str, Any]) -> str:
    if report["problems"]:
        return "something is wrong: see the problems"
    if report["other_devices"]:
        name = report["topology"]["name"]
        return f"the plan gives the results of one device here; on the devices of {name} nothing ran"
    return "all is well"
