"""Compile an exported program for machines that are not here, in a child process, and report the result."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxplan.audit._aot_assigned import RECOUNTED
from jaxplan.audit._hlo import Collective, module_collectives
from jaxplan.audit._hlo_flops import flops_by_dtype, uncounted_calls
from jaxplan.audit._hlo_liveness import Holding, peak_temporaries
from jaxplan.audit._hlo_source import CALL_SCOPE
from jaxplan.audit._hlo_text import parse_module
from jaxplan.core._files import check_folder, write_whole
from jaxplan.errors import AuditError, MissingExtraError

if TYPE_CHECKING:
    from jaxplan.mesh import Topology

CACHE_VERSION = 2  # raise when the child compiles differently

_PLUGINS = {
    "cuda": ("gpu-aot", ("jax_cuda12_plugin", "jax_cuda13_plugin")),
    "tpu": ("tpu-aot", ("libtpu",)),
}
_REMATERIALISED_NAME = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]*\.remat\d*[\w.\-]* = ", re.MULTILINE)
_REMATERIALISATION_WARNING = re.compile(r"[^\n]*by rematerialization[^\n]*")
_MAX_STDERR_LINES = 20
_POLL_SECONDS = 0.1
_Placed = TypeVar("_Placed", Collective, Holding)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMemory:
    """Bytes that one device needs, by the compiler's figures."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    generated_code_bytes: int = 0
    host_argument_bytes: int = 0
    host_output_bytes: int = 0
    host_alias_bytes: int = 0
    host_temp_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Peak: arguments + outputs - aliased + temporaries."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes

    @property
    def host_bytes(self) -> int:
        """Of the memory of the host: arguments + outputs - aliased + temporaries."""
        return self.host_argument_bytes + self.host_output_bytes - self.host_alias_bytes + self.host_temp_bytes

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Parts of the total: (name, bytes)."""
        return (
            ("arguments", self.argument_bytes),
            ("outputs that overwrite no argument", self.output_bytes - self.alias_bytes),
            ("temporaries", self.temp_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledReport:
    """A compiled program of one device, read from memory analysis and HLO text.

    `flops_by_dtype` counts contractions and convolutions per step by operand type; `uncounted_calls` names
    library calls it knows nothing of and `unknown_loops` loops of unknown length (counted once).
    `rematerialised`: the compiler recomputed values to save memory, so `memory` is the reduced figure.
    `held` are the parts of the temporaries at their peak (`peak_temporaries`).
    """

    platform: str
    memory: CompiledMemory
    collectives: tuple[Collective, ...]
    flops_by_dtype: tuple[tuple[str, int], ...]
    uncounted_calls: tuple[str, ...] = ()
    unknown_loops: tuple[str, ...] = ()
    rematerialised: bool = False
    warnings: tuple[str, ...] = ()
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    hlo_text: str | None = None
    held: tuple[Holding, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Peak bytes per device: arguments + outputs - aliased + temporaries."""
        return self.memory.total_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of one step on one device."""
        return sum(count for _, count in self.flops_by_dtype)


def compile_exported(
    serialized: bytes,
    topology: Topology,
    *,
    donate_argnums: Sequence[int] = (),
    compiler_options: Mapping[str, str] | None = None,
    mesh_axes: Sequence[tuple[str, int]] | None = None,
    host_argnums: Sequence[int] = (),
    host_results: Sequence[int] = (),
    cache_dir: str | os.PathLike[str] | None = None,
    timeout_seconds: float | None = None,
    cancelled: threading.Event | None = None,
) -> CompiledReport:
    """Compile `jax.export.Exported.serialize()` bytes for `topology` in a child process.

    The exported function takes and returns flat arrays; its platform (`cuda`, `tpu`, `cpu`) decides the
    compiler. `donate_argnums` are positions of flat arguments. `mesh_axes` are the (name, size) of the mesh
    that its shardings name, outermost first: by default the topology's atomic axes. `host_argnums` and `host_results`
    are positions of the flat arguments and results that live on the host. With `cache_dir`, reports
    are kept on disk under the hash of module, options and versions. The child ends when `cancelled` is set.

    Raises `MissingExtraError` without the compiler's plugin, `AuditError` if the program does not compile, and
    `SaveError` for a `cache_dir` that cannot be written.
    """
    if cache_dir is not None:
        check_folder(cache_dir)
    axes = [(str(name), int(size)) for name, size in mesh_axes or _topology_axes(topology)]
    options = {
        "mesh": axes,
        "donate_argnums": list(donate_argnums),
        "compiler_options": dict(sorted((compiler_options or {}).items())),
    }
    if host_argnums or host_results:
        options |= {"host_argnums": list(host_argnums), "host_results": list(host_results)}
    with tempfile.TemporaryDirectory(prefix="jaxplan-aot-") as scratch:
        topology_path = Path(scratch, "topology.json")
        topology.save(str(topology_path))
        settings = [options, topology.aot_environment()]
        if topology.chip.aot_platform in RECOUNTED:
            settings.append("assigned")  # not comparable with the figures after code generation
        key = _cache_key(serialized, topology_path.read_bytes(), settings)
        entry = Path(cache_dir, key) if cache_dir is not None else None
        if entry is not None and Path(entry, "result.json").exists():
            return _read_report(entry)
        Path(scratch, "exported.bin").write_bytes(serialized)
        _run_child(Path(scratch), options, _child_environment(topology), timeout_seconds, cancelled)
        if entry is not None:
            _store(Path(scratch), entry)
        return _read_report(Path(scratch))


def require_plugin(platform: str) -> None:
    """Raise `MissingExtraError` if compiling for `platform` needs a package that is not installed."""
    extra, modules = _PLUGINS.get(platform, ("", ()))
    if modules and not any(importlib.util.find_spec(module) for module in modules):
        raise MissingExtraError(
            f"compiling for {platform!r} without such a device needs the package {modules[0]!r}, which is not"
            f" installed; install it with: pip install 'jaxplan[{extra}]'"
        )


def _topology_axes(topology: Topology) -> list[tuple[str, int]]:
    return [(axis.name, axis.size) for axis in topology.axes]


def _cache_key(serialized: bytes, topology_json: bytes, settings: Sequence[Any]) -> str:
    versions = [CACHE_VERSION, *_compiler_versions()]
    digest = hashlib.sha256(serialized)
    digest.update(topology_json)
    digest.update(json.dumps([settings, versions], sort_keys=True).encode())
    return digest.hexdigest()


def _compiler_versions() -> list[str]:
    versions = []
    for name in ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "libtpu"):
        try:
            versions.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _run_child(
    scratch: Path,
    options: Mapping[str, Any],
    environment: dict[str, str],
    timeout_seconds: float | None,
    cancelled: threading.Event | None = None,
) -> None:
    files = {
        "exported": "exported.bin",
        "topology": "topology.json",
        "hlo": "hlo.txt",
        "result": "result.json",
        "dumps": "dumps",
    }
    request = {**options, **{role: str(scratch / name) for role, name in files.items()}}
    (scratch / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "jaxplan.audit._aot_child", str(scratch / "request.json")]
    returncode = _ended(command, environment, scratch / "stderr.txt", timeout_seconds, cancelled)
    stderr = (scratch / "stderr.txt").read_text(errors="replace")
    result_path = scratch / "result.json"
    result = json.loads(result_path.read_text()) if result_path.exists() else {}
    if "memory" not in result:
        _raise_child_error(result.get("error"), returncode, stderr)


def _ended(
    command: Sequence[str],
    environment: dict[str, str],
    stderr_path: Path,
    timeout_seconds: float | None,
    cancelled: threading.Event | None,
) -> int:
    """Run a command to its end and return its status; it is killed when its time is over, or when this call ends."""
    until = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    with open(stderr_path, "wb") as stderr, open(os.devnull, "r+b") as null:
        process = subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=stderr)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_SECONDS)
                if cancelled is not None and cancelled.is_set():
                    raise AuditError("compiling was cancelled, because the search was interrupted")
                if time.monotonic() > until:
                    raise AuditError(f"compiling took longer than the limit of {timeout_seconds} s")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _child_environment(topology: Topology) -> dict[str, str]:
    """The environment of the child: compile-only, with this jaxplan and no compiler flags but ours."""
    root = str(Path(__file__).resolve().parents[2])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") and k != "XLA_FLAGS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return environment | topology.aot_environment()


def _raise_child_error(error: Mapping[str, str] | None, returncode: int, stderr: str) -> None:
    lines = "\n".join(stderr.strip().splitlines()[-_MAX_STDERR_LINES:])
    if error is None:
        raise AuditError(f"the compiling process ended with status {returncode}; its last words:\n{lines}")
    if error["type"] in ("MissingExtraError", "ModuleNotFoundError"):
        raise MissingExtraError(error["message"])
    raise AuditError(f"the program did not compile: {error['type']}: {error['message']}")


def _store(scratch: Path, entry: Path) -> None:
    """Copy a child's answer into the cache; the result comes last, its presence makes the entry valid."""
    entry.mkdir(parents=True, exist_ok=True)
    for name in ("hlo.txt", "stderr.txt", "result.json"):
        write_whole(entry / name, (scratch / name).read_bytes())


def _read_report(folder: Path) -> CompiledReport:
    result = json.loads((folder / "result.json").read_text())
    hlo_text = (folder / "hlo.txt").read_text()
    stderr = (folder / "stderr.txt").read_text()
    module = parse_module(hlo_text)
    warnings = tuple(_REMATERIALISATION_WARNING.findall(stderr))
    return CompiledReport(
        platform=result["platform"],
        memory=CompiledMemory(**result["memory"]),
        collectives=tuple(map(_without_child, module_collectives(module))),
        flops_by_dtype=tuple(sorted(flops_by_dtype(module).items())),
        uncounted_calls=uncounted_calls(module),
        unknown_loops=module.unknown_loops,
        rematerialised=bool(warnings or _REMATERIALISED_NAME.search(hlo_text)),
        warnings=warnings,
        lower_seconds=result["lower_seconds"],
        compile_seconds=result["compile_seconds"],
        hlo_text=hlo_text,
        held=tuple(map(_without_child, peak_temporaries(module).holdings)),
    )


def _without_child(found: _Placed) -> _Placed:
    """Names and places of the program's own: the child's wrapping call is left out."""
    source = "" if "_aot_child.py:" in found.source else found.source
    return replace(found, op_name=found.op_name.removeprefix(f"{CALL_SCOPE}/"), source=source)
