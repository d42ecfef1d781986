"""Run every split equation on the devices' own pieces, whether it has to or not.

By itself the compiler splits what it can under constraints, and a rule that is wrong there costs communication, not
correctness. On pieces a wrong rule gives wrong numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax

from jaxplan.ir import OperatorRule
from jaxplan.partition import _decide, _local, _operators

_BY_POSITION = frozenset({"source", "rng", "region", "user", "unknown"})
"""Families whose results depend on where a piece lies, that have layouts of their own, or that are no operators."""
_SIZES = {
    "reshape": "new_sizes",
    "broadcast_in_dim": "shape",
    "dynamic_slice": "slice_sizes",
}


@contextlib.contextmanager
def on_pieces() -> Iterator[None]:
    """Within it plans are lowered so; an operator of partial sums runs as it does otherwise."""
    runs_on_pieces, local_params, island = _local.runs_on_pieces, _local.local_params, _operators.Operators._island

    def always(rule: OperatorRule, split: Mapping[int, tuple[int, ...]]) -> bool:
        may = rule.family not in _BY_POSITION and _is_major(rule, split)
        return runs_on_pieces(rule, split) or (bool(split) and may)

    def with_sizes(name: str, params: Any, ins: Sequence[Any], outs: Sequence[Any]) -> Mapping[str, Any]:
        params = local_params(name, params, ins, outs)
        if name in _SIZES:
            params = {**params, _SIZES[name]: tuple(outs[0])}
        if name == "slice":
            return _slice_params(params, ins[0], outs[0])
        return params

    def of_whole_sums(
        run: Any, eqn: Any, operands: Sequence[Any], shardings: Sequence[Any], homes: Any, split: Any
    ) -> list[Any]:
        rule = run._lowered.graph.rules[eqn.index]
        if not any(sharding.partial for sharding in shardings) or runs_on_pieces(rule, split):
            return island(run, eqn, operands, shardings, homes, split)
        mapped = jax.vmap(lambda *args: run.bind(eqn, args))(*operands)
        return [run._executor.constrain(r, home) for r, home in zip(mapped, homes, strict=True)]

    with (
        mock.patch.object(_decide, "runs_on_pieces", always),
        mock.patch.object(_local, "local_params", with_sizes),
        mock.patch.object(_operators.Operators, "_island", of_whole_sums),
    ):
        yield


def _is_major(rule: OperatorRule, split: Mapping[int, tuple[str, ...]]) -> bool:
    """Whether no factor that is split is a minor part of a dimension, which may be read whole."""
    return not any(
        f in split for tensor in (*rule.operands, *rule.results) for dim in tensor for f in dim[1:]
    )


def _slice_params(
    params: Mapping[str, Any], in_shape: Sequence[int], out_shape: Sequence[int]
) -> Mapping[str, Any]:
    """A dimension that is kept whole is kept whole of a piece."""
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(starts)
    kept = [a == 0 and s == 1 and i == o for a, s, i, o in zip(starts, strides, in_shape, out_shape)]
    return {**params, "limit_indices": tuple(n if k else b for k, n, b in zip(kept, in_shape, limits))}
