"""Frontiers kept on disk: found again by everything that a search depends on (docs/caching.md)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.core import _compat
from jaxplan.core._collector import paused_collector
from jaxplan.core._disk_cache import DiskCache
from jaxplan.core._interner import Memo
from jaxplan.core._json import MalformedError
from jaxplan.core._log import logger
from jaxplan.errors import JaxplanError
from jaxplan.frontend._options import Options
from jaxplan.ir import Program, StepGraph
from jaxplan.mesh import Topology
from jaxplan.plans._frontier import Frontier
from jaxplan.search._bind import Binder

FOLDER_VARIABLE = "JAXPLAN_CACHE_DIR"
"""The environment variable that names the folder where no option does."""
_NOT_OF_THE_SEARCH = frozenset([
    "cache_dir", "choose", "keep_layout", "like", "max_plans", "memory", "plan", "plan_cache", "progress", "time_limit",
    "topology", "verify", "donate_argnums", "static_argnums", "static_argnames",
])  # fmt: skip
"""Options that change no search, or are in the program, the machine or ``memory_limit_bytes``; a search that a time
limit ended is not kept."""
_OF_THE_SEARCH = sorted({field.name for field in dataclasses.fields(Options)} - _NOT_OF_THE_SEARCH)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class UnkeyedError(Exception):
    """Raised for an option of which no text tells all: the search is not kept."""


def cache_of(options: Options) -> DiskCache | None:
    """The cache that options or the environment name."""
    folder = options.plan_cache
    if folder is None:
        folder = os.environ.get(FOLDER_VARIABLE) or False
    return None if isinstance(folder, bool) else DiskCache(folder=Path(folder).expanduser())


def programs_folder(options: Options) -> str | os.PathLike[str] | None:
    """Where programs that are compiled to verify are kept: the folder of the options, or beside the plans."""
    cache = cache_of(options)
    return options.cache_dir if options.cache_dir is not None or cache is None else cache.folder / "programs"


def kept_frontier(cache: DiskCache, key: str, graph: StepGraph) -> Frontier | None:
    """The frontier that was kept for the key, its plans bound to the program; None where no whole one is."""
    data = cache.read(key)
    if data is None:
        return None
    binder = Binder(step=graph, args=(), kwargs={}, graph=graph)
    try:
        with paused_collector():
            return Frontier.from_json(json.loads(data), binder.read)
    except (JaxplanError, MalformedError, ValueError, RecursionError) as error:
        cache.report(key, str(error).partition("\n")[0])
        return None


def keep_frontier(cache: DiskCache, key: str, frontier: Frontier) -> None:
    """Keep a frontier; lowering decisions, which take longest, are made where a plan runs."""
    undecided = dataclasses.replace(
        frontier,
        points=tuple(dataclasses.replace(plan, decided=None) for plan in frontier.points),
        references={name: dataclasses.replace(plan, decided=None) for name, plan in frontier.references.items()},
    )
    cache.write(key, json.dumps(undecided.to_json(), separators=(",", ":"), allow_nan=False).encode())


def search_key(graph: StepGraph, topology: Topology, options: Options) -> str | None:
    """A digest of the program, the machine, the options and the versions; None where that cannot be told."""
    try:
        parts = [
            _versions(),
            json.dumps(topology.to_json(), sort_keys=True),
            *(f"{name}: {_text(getattr(options, name))}" for name in _OF_THE_SEARCH),
            *_of_program(graph.program),
            *_rules(graph),
        ]
    except UnkeyedError as error:
        logger.info("the plans are not kept on disk: %s", error)
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _versions() -> str:
    """Versions of JAX and NumPy, and a digest of jaxplan's own code: a plan belongs to what made it."""
    folder = Path(__file__).parent.parent
    digest, files = hashlib.sha256(), sorted(folder.rglob("*.py"))
    for path in files:
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    if not files:
        raise UnkeyedError("the code of jaxplan is not in files")
    return f"jax {jax.__version__} numpy {np.__version__} jaxplan {digest.hexdigest()}"


def _of_program(program: Program) -> Iterator[str]:
    """Equations, literals, arguments and results (the fingerprint), constants by value, and how state is paired."""
    yield program.fingerprint
    rewritten = program.microbatches, program.recomputed_loops, program.sort_blocks
    yield repr((program.donate_argnums, program.static_argnums, program.pairs, rewritten))
    # Functions in the structure of a state (`apply_fn`, an optimizer's) have another address in every process; where
    # one is another function, the equations are others.
    yield _ADDRESS.sub("", f"{program.in_tree} {program.out_tree}")
    for tensor in program.tensors:
        if tensor.kind == "constant" or (tensor.kind == "literal" and np.ndim(tensor.value)):
            yield f"{tensor} {_value_digest(tensor.value)}"


def _value_digest(value: Any) -> str:
    """Of an array's values; nothing where other processes hold a part of them, as no plan depends on values."""
    if isinstance(value, jax.Array):
        if not value.is_fully_addressable:
            return ""
        if _compat.is_key_dtype(value.dtype):
            value = jax.random.key_data(value)
    array = np.asarray(value)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() + str(array.dtype)


def _rules(graph: StepGraph) -> Iterator[str]:
    """Operator rules and counts of the equations: a person may have registered others than jaxplan's own."""
    texts = Memo()  # equal operators share the object
    for pair in zip(graph.rules, graph.counts, strict=True):
        numbered = zip(texts.numbers(pair), pair)
        yield "".join([texts.get(n) or texts.setdefault(n, _ADDRESS.sub("", repr(of))) for n, of in numbered])


def _text(value: Any) -> str:
    """Text that two values share only if they mean the same to a search.

    Raises:
      UnkeyedError: a value of a type of which that is not known.
    """
    if value is None or isinstance(value, bool | int | float | str | PartitionSpec):
        return repr(value)
    if isinstance(value, NamedSharding):
        mesh = value.mesh
        devices = mesh.device_ids.tolist() if isinstance(mesh, Mesh) else None
        return f"NamedSharding({dict(mesh.shape)} {devices} {value.spec!r} {value.memory_kind})"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(key)}:{_text(of)}" for key, of in value.items()) + "}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({','.join(map(_text, value))})"
    if type(value).__module__.partition(".")[0] == "jaxplan" and " at 0x" not in repr(value):
        return repr(value)
    leaves, tree = jax.tree.flatten(value)
    if jax.tree_util.all_leaves([value]):
        raise UnkeyedError(f"an option has a value of type {type(value).__name__}")
    return f"{tree}({','.join(map(_text, leaves))})"
