"""Place values of the host on the devices of several processes, each process its own part of values that all have.

`jax.device_put` takes neither committed arrays nor random keys there, and compares every value with those of the other
processes by sending all of it; here checksums are compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.core import _compat
from jaxplan.core._processes import agree, spans_processes

if TYPE_CHECKING:
    from jaxplan.frontend._call import Call

_CAUSE = "each process passed its own part of a batch, or drew its own random numbers"
_FIX = "make one array of the parts: step(state, plan.batch(part)), see docs/hosts.md; or pass equal values"


def is_on_host(value: Any) -> bool:
    """Whether a value is known to this process as a whole: no array, or an array on its own devices."""
    return not isinstance(value, jax.Array) or (not isinstance(value, _compat.Tracer) and value.is_fully_addressable)


def check_equal(topic: str, values: Mapping[str, Any]) -> None:
    """Compare host values, by path, with those of the other processes; called in all of them.

    Raises:
      ProcessError: a value, or its place, differs; names the path, in every process.
    """
    sums = {path: _checksum(value) for path, value in values.items()}
    facts = {"arguments that come from the host": ", ".join(values)}
    agree(topic, {**facts, **{f"values of {path}": found for path, found in sums.items()}}, cause=_CAUSE, fix=_FIX)


def put(value: Any, sharding: NamedSharding) -> Any:
    """As `jax.device_put`; where the devices belong to several processes, all of them have the same host value."""
    if sharding.is_fully_addressable or not is_on_host(value) or not _compat.trace_state_clean():
        return jax.device_put(value, sharding)
    if _is_key(value):
        spec = (*sharding.spec, *(None,) * (value.ndim + 1 - len(sharding.spec)))
        data = put(jax.random.key_data(value), NamedSharding(sharding.mesh, PartitionSpec(*spec)))
        return jax.random.wrap_key_data(data, impl=_compat.key_implementation(value.dtype))
    array = _on_host(value)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value, dtype=jax.typeof(value).dtype)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and _compat.is_key_dtype(value.dtype)


def _checksum(value: Any) -> str:
    """Dtype, shape, and a checksum of the bytes."""
    if _is_key(value):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(_on_host(value))
    return f"{array.dtype}{list(np.shape(value))}, checksum {zlib.crc32(array.view(np.uint8).data):08x}"


def check_equal_leaves(topic: str, paths: Sequence[str], leaves: Sequence[Any], which: Sequence[int]) -> None:
    """`check_equal` for those of some flat arguments that come from the host."""
    check_equal(topic, {paths[i]: leaves[i] for i in which if is_on_host(leaves[i])})


def check_equal_arguments(call: Call, devices: Iterable[Any]) -> None:
    """Compare the arguments of a call with those of the other processes, where the devices belong to several."""
    if spans_processes(devices) and _compat.trace_state_clean():
        check_equal_leaves("the arguments of a call", call.paths(), call.leaves, range(len(call.leaves)))
