"""Capture a step on abstract values: jaxpr -> Program (design: trace, inline calls, keep provenance)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxplan import _compat, _nnx
from jaxplan._arguments import check_leaves, step_name
from jaxplan._errors import ArgumentError, TraceError
from jaxplan.ir import _control_flow as _control_flow  # registers how loops and branches are inlined
from jaxplan.ir import _package_calls as _package_calls  # and primitives of other packages
from jaxplan.ir import _padded_windows as _padded_windows  # how sums over padded windows are
from jaxplan.ir import _user_sharding as _user_sharding  # and how shardings of the user's are
from jaxplan.ir._builder import Builder
from jaxplan.ir._dead_code import remove_dead
from jaxplan.ir._program import Program
from jaxplan.ir._state import Leaf, donated_by_default, pair_state
from jaxplan.ir._successors import Successors

_TRACE_FAILED_MSG = (
    "jaxplan could not trace the step {name}.\n"
    "  expected: a function that jax.jit accepts (pure, arrays in and out, no Python branch on array values)\n"
    "  got: {error_type}: {error}\n"
    "  at: {where}\n"
    "  likely cause: {cause}\n"
    "  fix: {fix}; jax.make_jaxpr({name})(*args) must work first"
)
_CAPTURED_MSG = (
    "the step {name} uses a value of another function that is being traced, without taking it as an argument.\n"
    "  expected: a step that depends on its arguments and on constants, because its plan is kept for later calls\n"
    "  likely cause: it is defined inside a function under jax.jit, jax.grad or jax.lax.scan, and reads its variables\n"
    "  fix: pass the value to the step as an argument"
)
_CAUSES: tuple[tuple[type[Exception], str, str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "a Python if, while, and, or or assert on the value of an array",
        "use jnp.where, jax.lax.cond or jax.lax.while_loop, or static_argnums when the value is a setting",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "a NumPy function was given a traced array",
        "use the function of jax.numpy",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "a Python value (a shape, an index, float(x), x.item()) depends on the value of an array",
        "compute it from shapes, or name its argument in static_argnums",
    ),
)


def trace(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    donate_argnums: Sequence[int] | None = None,
    static_argnums: Sequence[int] = (),
) -> Program:
    """Trace ``step`` on abstract values; nothing is allocated.

    Args:
      step: the single-device step.
      args, kwargs: arrays, ``jax.ShapeDtypeStruct`` or pytrees of them.
      donate_argnums: positions in ``args`` whose buffers the step may reuse; None: every argument that the step
        returns updated, leaf by leaf.
      static_argnums: positions in ``args`` closed over as Python values.

    Raises:
      TraceError: the step cannot be traced; names the user's own line.
      ArgumentError: an argument number is out of range, or an argument is both static and donated.
    """
    static = {_position(i, args, "static_argnums") for i in static_argnums}
    with _nnx.opened(args, kwargs or {}, tuple(static)) as call:
        return _trace(call.functional(step), call.args, dict(call.kwargs), static, donate_argnums)


def _trace(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: set[int],
    donate_argnums: Sequence[int] | None,
) -> Program:
    """`trace`, with NNX objects opened."""
    dynamic = [i for i in range(len(args)) if i not in static]

    def call(dynamic_args, kwargs):
        merged = list(args)
        for i, value in zip(dynamic, dynamic_args, strict=True):
            merged[i] = value
        return step(*merged, **kwargs)

    try:
        abstract = jax.tree.map(_abstract, ([args[i] for i in dynamic], kwargs))
    except TypeError:
        check_leaves(step, args, kwargs, tuple(static))
        raise
    try:
        closed, out_shape = jax.make_jaxpr(call, return_shape=True)(*abstract)
    except Exception as error:
        raise _trace_error(step, error) from error
    if any(isinstance(value, _compat.Tracer) for value in closed.consts):
        raise TraceError(_CAPTURED_MSG.format(name=step_name(step)))
    return build_program(
        closed,
        in_example=abstract,
        out_example=out_shape,
        donate=None if donate_argnums is None else _dynamic_positions(donate_argnums, args, dynamic),
        argnums=dynamic,
        static_argnums=tuple(sorted(static)),
    )


def _position(argnum: int, args: Sequence[Any], option: str) -> int:
    """A position in ``args``; negative numbers count from the end."""
    if not -len(args) <= argnum < len(args):
        raise ArgumentError(
            f"{option} names argument {argnum}, and the step was given {len(args)} positional arguments; "
            "keyword arguments have no number: pass it by position"
        )
    return argnum % len(args)


def _dynamic_positions(
    donate_argnums: Sequence[int], args: Sequence[Any], dynamic: Sequence[int]
) -> list[int]:
    """Positions of donated arguments among those that are not static."""
    donated = [_position(i, args, "donate_argnums") for i in donate_argnums]
    both = [i for i in donated if i not in dynamic]
    if both:
        raise ArgumentError(
            f"arguments {both} are in donate_argnums and in static_argnums; a Python value has no buffer"
        )
    return [dynamic.index(i) for i in donated]


def build_program(
    closed: Any,
    *,
    in_example: Any,
    out_example: Any,
    donate: Sequence[int] | None,
    argnums: Sequence[int],
    static_argnums: tuple[int, ...] = (),
) -> Program:
    """Turn a closed jaxpr of ``f(dynamic_args, kwargs)`` into a `Program`."""
    in_tree = jax.tree.structure(in_example)
    in_keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(in_example)[0]]
    out_keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(out_example)[0]]
    in_paths = tuple(_input_path(path, argnums) for path in in_keys)
    builder = Builder()
    jaxpr = closed.jaxpr
    inputs = [builder.add(var.aval, "input", path) for var, path in zip(jaxpr.invars, in_paths, strict=True)]
    outputs = builder.inline(jaxpr, closed.consts, inputs, "")
    named = tuple(path[0].idx == 0 and donate is not None and path[1].idx in donate for path in in_keys)
    ins = [Leaf.of(path[1:], builder.tensors[t]) for path, t in zip(in_keys, inputs, strict=True)]
    outs = [Leaf.of(path, builder.tensors[t]) for path, t in zip(out_keys, outputs, strict=True)]
    pairs = pair_state(ins, outs, Successors(builder.tensors, builder.equations, inputs), named)
    donated = named if donate is not None else donated_by_default(ins, pairs)
    equations, regions = remove_dead(builder.equations, outputs, builder.regions)
    return Program(
        tensors=tuple(builder.tensors),
        equations=equations,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        in_tree=in_tree,
        out_tree=jax.tree.structure(out_example),
        in_paths=in_paths,
        out_paths=tuple(jax.tree_util.keystr(path) for path in out_keys),
        donated=donated,
        pairs=pairs,
        static_argnums=static_argnums,
        fingerprint=_fingerprint(builder.tensors, equations, regions, inputs, outputs, donated),
        regions=regions,
    )


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _input_path(path: tuple[Any, ...], argnums: Sequence[int]) -> str:
    if path[0].idx == 0:
        return f"[{argnums[path[1].idx]}]" + jax.tree_util.keystr(path[2:])
    return jax.tree_util.keystr(path[1:])


def _fingerprint(tensors, equations, regions, inputs, outputs, donated) -> str:
    digest = hashlib.sha256()

    def put(*items: Any) -> None:
        digest.update(repr(items).encode())

    for i in inputs:
        put("in", tensors[i].shape, str(tensors[i].dtype), tensors[i].path)
    for tensor in tensors:  # not their values: a plan does not depend on them
        if tensor.kind == "constant":
            put("constant", tensor.index, tensor.shape, str(tensor.dtype))
    for eqn in equations:
        operands = tuple(
            ("lit", str(tensors[t].dtype), _literal_repr(tensors[t].value))
            if tensors[t].kind == "literal"
            else t
            for t in eqn.operands
        )
        shapes = tuple((tensors[t].shape, str(tensors[t].dtype)) for t in eqn.results)
        put(eqn.name, operands, eqn.results, shapes, stable_params(eqn.params))
    for region in regions:
        put(region.kind, region.selector, region.predicate, region.ranges, region.params.get("reverse"))
    put("out", tuple(outputs), tuple(donated))
    return digest.hexdigest()


def _literal_repr(value: Any) -> str:
    return repr(np.asarray(value).tolist()) if np.ndim(value) == 0 else "array"


def stable_params(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Parameters as text that is equal across processes (no object addresses)."""
    return tuple((key, _stable(params[key])) for key in sorted(params))


def _stable(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | np.dtype | np.generic):
        return str(value)
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(_stable, value)) + ")"
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return str(value)
    text = str(value)
    return getattr(value, "__name__", type(value).__name__) if " at 0x" in text or callable(value) else text


def _trace_error(step: Callable[..., Any], error: Exception) -> TraceError:
    frame = _user_frame(error)
    causes = ((cause, fix) for kind, cause, fix in _CAUSES if isinstance(error, kind))
    cause, fix = next(
        causes, ("the step itself fails on these shapes and dtypes", "mend that line, or the arguments")
    )
    return TraceError(
        _TRACE_FAILED_MSG.format(
            name=step_name(step),
            cause=cause,
            fix=fix,
            error_type=type(error).__name__,
            error=str(error).split("\n", 1)[0],
            where=frame or "unknown line",
        )
    )


def _user_frame(error: BaseException) -> str:
    """``file:line (function)`` of the innermost frame outside JAX, Flax, Optax and jaxplan."""
    found = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in (
            "jax",
            "jaxlib",
            "flax",
            "optax",
            "jaxplan",
            "contextlib",
            "functools",
        ):
            found = f"{code.co_filename}:{traceback.tb_lineno} ({code.co_name})"
        traceback = traceback.tb_next
    return found
