"""Compile one exported program for a topology's compile-only devices, as far as a report reads it.

Run as `python -m jaxplan.audit._aot_child request.json`. A process of its own, because the compile-only
platforms want environment variables that must be set before JAX starts. Reads a request (JSON), writes the
HLO text and a result (JSON) where the request says.
"""

import json
import math
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any


def main(request_path: str) -> int:
    """Serve the request in the file `request_path`; 0 if it was compiled, 1 if the result holds an error."""
    request = json.loads(Path(request_path).read_text())
    try:
        result, status = compile_request(request), 0
    except Exception as error:  # the parent process raises it again, with its context
        result, status = {"error": {"type": type(error).__name__, "message": str(error)}}, 1
    Path(request["result"]).write_text(json.dumps(result))
    return status


def compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """Compile, write the HLO to `request["hlo"]`, and return memory (bytes) and times (seconds)."""
    import jax
    from jax import export

    from jaxplan.audit._aot_assigned import PLATFORMS, Assigned, assigned_or_compiled, dump_options

    jax.config.update("jax_enable_x64", True)  # the program's types are already decided; keep them
    exported = export.deserialize(bytearray(Path(request["exported"]).read_bytes()))
    mesh = _mesh(exported.platforms[0], request)
    alone = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0]) if exported.nr_devices == 1 else None
    in_shardings = [sharding or alone for sharding in exported.in_shardings_jax(mesh)]
    in_shardings = _on_host(in_shardings, request.get("host_argnums", ()))
    out_shardings = _on_host(exported.out_shardings_jax(mesh), request.get("host_results", ()))
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, in_shardings, strict=True)
    ]

    def exported_step(*leaves: Any) -> Any:
        return exported.call(*leaves)

    step = jax.jit(
        exported_step,
        donate_argnums=tuple(request["donate_argnums"]),
        out_shardings=jax.tree.unflatten(exported.out_tree, out_shardings),
    )
    start = time.perf_counter()
    lowered = step.lower(*arguments)
    _mark_on_host(lowered, frozenset(request.get("host_argnums", ())))
    lowered_at = time.perf_counter()
    options, dumps = request["compiler_options"], Path(request["dumps"])
    if exported.platforms[0] in PLATFORMS:
        options = {**dump_options(dumps), **options}
        compiled = assigned_or_compiled(lambda: lowered.compile(compiler_options=options), dumps, exported.platforms[0])
    else:
        compiled = lowered.compile(compiler_options=options)
    compiled_at = time.perf_counter()
    is_assigned = isinstance(compiled, Assigned)
    Path(request["hlo"]).write_text(compiled.hlo_text if is_assigned else compiled.as_text() or "")
    return {
        "platform": exported.platforms[0],
        "memory": compiled.memory if is_assigned else _memory(compiled.memory_analysis()),
        "lower_seconds": lowered_at - start,
        "compile_seconds": compiled_at - lowered_at,
    }


def _on_host(shardings: Any, positions: Any) -> list[Any]:
    """Shardings, some of them of arrays in the memory of the host; an exported program forgets which."""
    return [s.with_memory_kind("pinned_host") if i in positions else s for i, s in enumerate(shardings)]


def _mark_on_host(lowered: Any, positions: Collection[int]) -> None:
    """Say in the program which arguments are in the memory of the host.

    Compile-only GPU devices have one memory, so that JAX leaves out where arguments are. Without that the compiler
    reads them from kernels; with it, as on devices that are there, it copies them to the device first.
    """
    from jaxlib.mlir import ir

    if not positions:
        return
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        (main,) = (f for f in module.body.operations if ir.StringAttr(f.attributes["sym_name"]).value == "main")
        attributes = [{a.name: a.attr for a in of} for of in main.arg_attrs]
        for i in positions:
            attributes[i]["mhlo.memory_kind"] = ir.StringAttr.get("pinned_host")
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(of) for of in attributes])


def _mesh(platform: str, request: dict[str, Any]) -> Any:
    """The mesh of the request over the topology's compile-only devices, in the topology's order."""
    import jax
    import numpy as np

    from jaxplan.audit._aot import require_plugin
    from jaxplan.mesh import Topology

    topology = Topology.load(request["topology"])
    if platform != topology.chip.aot_platform:
        raise ValueError(
            f"the program was exported for {platform!r}, and {topology.name} compiles for"
            f" {topology.chip.aot_platform!r}: export it with platforms=[topology.chip.aot_platform]"
        )
    require_plugin(platform)
    names, sizes = [name for name, _ in request["mesh"]], [size for _, size in request["mesh"]]
    if (count := math.prod(sizes)) != topology.num_devices:
        raise ValueError(
            f"the mesh {request['mesh']} has {count} devices; {topology.name} has {topology.num_devices}"
        )
    return jax.sharding.Mesh(np.array(topology.aot_devices()).reshape(sizes), tuple(names))


def _memory(stats: Any) -> dict[str, int]:
    return {
        "argument_bytes": stats.argument_size_in_bytes,
        "output_bytes": stats.output_size_in_bytes,
        "alias_bytes": stats.alias_size_in_bytes,
        "temp_bytes": stats.temp_size_in_bytes,
        "generated_code_bytes": stats.generated_code_size_in_bytes,
        "host_argument_bytes": stats.host_argument_size_in_bytes,
        "host_output_bytes": stats.host_output_size_in_bytes,
        "host_alias_bytes": stats.host_alias_size_in_bytes,
        "host_temp_bytes": stats.host_temp_size_in_bytes,
    }


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(status)  # compilations still running are not waited for
