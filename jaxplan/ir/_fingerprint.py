"""The fingerprint of a program, by which a saved plan knows the step that it is of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxplan.ir._program import Equation, Region, Tensor

_PRINTED = (bool, int, float, str, np.dtype, np.generic)


def fingerprint_of(
    tensors: Sequence[Tensor],
    equations: Sequence[Equation],
    regions: Sequence[Region],
    inputs: Sequence[int],
    outputs: Sequence[int],
    donated: Iterable[bool],
) -> str:
    """A hash of a program, equal in every process; values of constants do not count."""
    digest, dtypes = hashlib.sha256(), {dtype: str(dtype) for dtype in {tensor.dtype for tensor in tensors}}

    def put(*items: Any) -> None:
        digest.update(repr(items).encode())

    for i in inputs:
        put("in", tensors[i].shape, dtypes[tensors[i].dtype], tensors[i].path)
    for tensor in tensors:  # not their values: a plan does not depend on them
        if tensor.kind == "constant":
            put("constant", tensor.index, tensor.shape, dtypes[tensor.dtype])
    for eqn in equations:
        operands = tuple(
            ("lit", dtypes[tensors[t].dtype], _literal_repr(tensors[t].value))
            if tensors[t].kind == "literal"
            else t
            for t in eqn.operands
        )
        shapes = tuple((tensors[t].shape, dtypes[tensors[t].dtype]) for t in eqn.results)
        put(eqn.name, operands, eqn.results, shapes, _stable_params(eqn.params))
    for region in regions:
        put(region.kind, region.selector, region.predicate, region.ranges, region.params.get("reverse"))
    put("out", tuple(outputs), tuple(donated))
    return digest.hexdigest()


def _literal_repr(value: Any) -> str:
    return repr(np.asarray(value).tolist()) if np.ndim(value) == 0 else "array"


def _stable_params(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Parameters as text that is equal across processes (no object addresses)."""
    return tuple((key, _stable(params[key])) for key in sorted(params))


def _stable(value: Any) -> str:
    if value is None or isinstance(value, _PRINTED):
        return str(value)
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(_stable, value)) + ")"
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return str(value)
    text = str(value)
    return getattr(value, "__name__", type(value).__name__) if " at 0x" in text or callable(value) else text
