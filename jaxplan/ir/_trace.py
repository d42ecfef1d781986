"""Capture a step on abstract values: jaxpr -> Program (design: trace, inline calls, keep provenance)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxplan.core import _compat
from jaxplan.core._mesh_context import without_explicit_axes
from jaxplan.core._paths import argument_names
from jaxplan.errors import ArgumentError, TraceError
from jaxplan.frontend._arguments import step_name
from jaxplan.frontend._call import Call, argument_path, opened_call
from jaxplan.frontend._step_options import StepOptions, Which
from jaxplan.ir import _control_flow as _control_flow  # registers how loops and branches are inlined
from jaxplan.ir import _package_calls as _package_calls  # and primitives of other packages
from jaxplan.ir import _padded_windows as _padded_windows  # how sums over padded windows are
from jaxplan.ir import _user_sharding as _user_sharding  # and how shardings of the user's are
from jaxplan.ir._builder import Builder
from jaxplan.ir._dead_code import remove_dead
from jaxplan.ir._dependence import Dependence
from jaxplan.ir._fingerprint import fingerprint_of
from jaxplan.ir._loop_remat import recompute_in_loops
from jaxplan.ir._loop_slices import scan_over_slices
from jaxplan.ir._micro_batch_order import one_after_another
from jaxplan.ir._micro_batches import cut_freely
from jaxplan.ir._model import rule_of
from jaxplan.ir._program import LoopRemat, MicroBatches, Program, SortBlocks, Source
from jaxplan.ir._sizes import check_sizes
from jaxplan.ir._state import donated_by_default, pair_state
from jaxplan.ir._state_leaves import Leaf
from jaxplan.ir._static_slices import index_parts
from jaxplan.ir._successors import Successors
from jaxplan.ir.local_sorts import sort_in_blocks
from jaxplan.ir.microbatch import Strata, not_separable, sorted_strata, split_batch

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
_DELETED_MSG = (
    "the step {name} closes over an array {shape} that was deleted: an earlier call was given it as an argument "
    "and could reuse its buffer.\n"
    "  likely cause: it is part of a state that a planned step, or jax.jit with donate_argnums, returned updated\n"
    "  fix: pass it to the step as an argument, or close over a copy (jnp.copy)"
)
_STEP_FAILS = "the step itself fails on these shapes and dtypes", "mend that line, or the arguments"
_MOST_NUMBERS = 6
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
    static_argnums: int | Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    under: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Program:
    """Trace ``step`` on abstract values; nothing is allocated.

    Args:
      step: the single-device step; one that is jitted already keeps its own static and donated arguments.
      donate_argnums: numbers of arguments whose buffers the step may reuse; None: those that its own `jax.jit` names,
        else every argument that the step returns updated, leaf by leaf.
      static_argnums, static_argnames: arguments that are Python values, by number and name, as `jax.jit` has them.
      under: the context in which this and every later form of the step is traced (`Source`).

    Raises:
      TraceError: the step cannot be traced; names the user's own line.
      ArgumentError: an argument number is out of range, or an argument is both static and donated.
    """
    options = StepOptions.of(
        step, static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums
    )
    program = _Source(step=step, options=options, under=under).trace(args, kwargs or {})
    if donate_argnums is None:
        return program
    return dataclasses.replace(program, donate_argnums=tuple(donate_argnums))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """The step of a program and how it takes its arguments; see `Source`."""

    step: Callable[..., Any]
    options: StepOptions
    under: Callable[[], contextlib.AbstractContextManager[Any]]
    microbatches: MicroBatches | None = None
    recomputed_loops: LoopRemat | None = None
    sort_blocks: SortBlocks | None = None

    def trace(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        self.options.check_numbers(args)
        with self.under(), without_explicit_axes(), opened_call(self.step, self.options, args, kwargs) as call:
            program = _trace(self.step, call, self.microbatches, self.recomputed_loops, self.sort_blocks)
            return dataclasses.replace(
                program,
                source=Source(
                    step=self.step,
                    options=self.options,
                    spelling=(len(args), tuple(kwargs)),
                    statics=call.statics,
                    avals=call.avals,
                    trace=self.trace,
                    resized=functools.partial(self._resized, *_abstract(args, kwargs)),
                    sliced=functools.partial(self._sliced, *_abstract(args, kwargs)),
                    strata=functools.partial(self._strata, *_abstract(args, kwargs)),
                    recomputed=functools.partial(self._recomputed, *_abstract(args, kwargs)),
                    sorted_in_blocks=functools.partial(self._sorted_in_blocks, *_abstract(args, kwargs)),
                ),
            )

    def _resized(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
    ) -> Program:
        """The program of the same arguments with other shapes at some key paths."""

        def resize(path: tuple[Any, ...], leaf: Any) -> Any:
            name = argument_path(path, range(len(args)))
            return leaf if name not in shapes else jax.ShapeDtypeStruct(shapes[name], leaf.dtype)

        return self.trace(*jax.tree_util.tree_map_with_path(resize, (list(args), dict(kwargs))))

    def _sliced(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], microbatches: MicroBatches | None
    ) -> Program:
        """The program of the same arguments, its batch in slices."""
        return dataclasses.replace(self, microbatches=microbatches).trace(args, kwargs)

    def _recomputed(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], recomputed_loops: LoopRemat | None
    ) -> Program:
        """The program of the same arguments, layers of its loops recomputed."""
        return dataclasses.replace(self, recomputed_loops=recomputed_loops).trace(args, kwargs)

    def _sorted_in_blocks(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], sort_blocks: SortBlocks | None
    ) -> Program:
        """The program of the same arguments, rows for its ragged dots sorted in blocks."""
        return dataclasses.replace(self, sort_blocks=sort_blocks).trace(args, kwargs)

    def _strata(self, args: Sequence[Any], kwargs: Mapping[str, Any], microbatches: MicroBatches) -> Strata:
        """The equations of the same arguments' step, sorted into a loop over slices of the batch and the rest."""
        with self.under(), without_explicit_axes(), opened_call(self.step, self.options, args, kwargs) as call:
            example = _example(call)
            closed, _ = _traced(self.step, call, example, self.recomputed_loops)
            small, batch = _on_a_slice(self.step, call, example, microbatches, self.recomputed_loops)
            closed, small = _sorted_alike(closed, small, microbatches.num, self.sort_blocks)
            return sorted_strata(closed, small, batch)


def _abstract(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments without the memory of their arrays."""

    def abstract(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array | np.ndarray)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array else leaf

    return jax.tree.map(abstract, (list(args), dict(kwargs)))


def _trace(
    step: Callable[..., Any],
    call: Call,
    microbatches: MicroBatches | None = None,
    recomputed_loops: LoopRemat | None = None,
    sort_blocks: SortBlocks | None = None,
) -> Program:
    """`trace`, with NNX objects opened."""
    example = _example(call)
    closed, out_shape = _traced(step, call, example, recomputed_loops)
    if microbatches is not None:
        small, batch = _on_a_slice(step, call, example, microbatches, recomputed_loops)
        closed, small = _sorted_alike(closed, small, microbatches.num, sort_blocks)
        closed = split_batch(closed, small, batch, microbatches.num)
    else:
        closed = _sorted(closed, sort_blocks)
    donated = call.options.donated
    program = build_program(
        closed,
        in_example=example,
        out_example=out_shape,
        donate=None if donated is None else _named(call, donated),
        argnums=call.dynamic,
        static_argnums=tuple(sorted(call.options.static.positions(call.args))),
    )
    check_sizes(program, argument_names(step))
    chosen = {"microbatches": microbatches, "recomputed_loops": recomputed_loops, "sort_blocks": sort_blocks}
    return dataclasses.replace(_with_free_micro_batches(program), **chosen)


def _sorted(closed: Any, sort_blocks: SortBlocks | None, num_slices: int = 1) -> Any:
    """The closed jaxpr of a step, rows for its ragged dots sorted in so many blocks for each slice of its batch."""
    if sort_blocks is None:
        return closed
    return sort_in_blocks(closed, num_slices * sort_blocks.num)


def _sorted_alike(full: Any, small: Any, num_slices: int, sort_blocks: SortBlocks | None) -> tuple[Any, Any]:
    """The jaxpr of a step, and of it on a slice of its batch, with rows sorted in blocks of one size."""
    return _sorted(full, sort_blocks, num_slices), _sorted(small, sort_blocks)


def _example(call: Call) -> Any:
    """The arguments of a call as shapes, in their tree."""
    leaves = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in call.avals]
    return jax.tree.unflatten(call.tree, leaves)


def _traced(
    step: Callable[..., Any], call: Call, example: Any, recomputed_loops: LoopRemat | None
) -> tuple[Any, Any]:
    """The closed jaxpr of a step, and the shapes of its results."""
    try:
        closed, out_shape = jax.make_jaxpr(call.functional(step), return_shape=True)(*example)
    except Exception as error:
        raise _trace_error(step, error, call) from error
    _check_constants(step, closed.consts)
    if recomputed_loops is not None:
        closed = recompute_in_loops(closed, recomputed_loops)
    return closed, out_shape


def _on_a_slice(
    step: Callable[..., Any],
    call: Call,
    example: Any,
    microbatches: MicroBatches,
    recomputed_loops: LoopRemat | None,
) -> tuple[Any, dict[int, int]]:
    """The jaxpr of a step on one slice of its batch; position of each input that holds examples -> that dimension."""
    batch: dict[int, int] = {}

    def shrink(position_path: tuple[int, Any], leaf: Any) -> Any:
        position, path = position_path
        dim = microbatches.dims.get(argument_path(path, call.dynamic))
        if dim is None:
            return leaf
        batch[position] = dim
        shape = list(leaf.shape)
        if shape[dim] % microbatches.num or shape[dim] < 2 * microbatches.num:
            raise ArgumentError(
                f"a batch of {shape[dim]} examples cannot be worked through in {microbatches.num} micro-batches.\n"
                f"  expected: {_numbers_of_slices(shape[dim])}: each needs the same number of examples, at least 2\n"
                "  likely cause: the number does not divide the batch\n"
                "  fix: one of these, or another batch size"
            )
        shape[dim] //= microbatches.num
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, weak_type=leaf.weak_type)

    paths, tree = jax.tree_util.tree_flatten_with_path(example)
    leaves = [shrink((position, path), leaf) for position, (path, leaf) in enumerate(paths)]
    try:
        small, _ = _traced(step, call, jax.tree.unflatten(tree, leaves), recomputed_loops)
    except TraceError as error:
        said = str(error.__cause__).partition("\n")[0].rstrip(".")
        raise not_separable(f"it cannot be traced with fewer examples: {said}") from error
    return small, batch


def _numbers_of_slices(examples: int) -> str:
    """The numbers of micro-batches that a batch can be worked through in."""
    numbers = [n for n in range(2, examples // 2 + 1) if examples % n == 0]
    first = [*map(str, numbers[:_MOST_NUMBERS])]
    return " or ".join(filter(None, (", ".join(first[:-1]), *first[-1:]))) or "no micro-batches"


def _with_free_micro_batches(program: Program) -> Program:
    """`cut_freely`, of micro-batches that are sliced by themselves too; these slices stay where it cuts nothing."""
    for form in (scan_over_slices(index_parts(program)), scan_over_slices(program), index_parts(program)):
        if form is not program and (cut := cut_freely(form, rule_of)) is not form:
            return one_after_another(cut)
    return one_after_another(cut_freely(program, rule_of))


def _check_constants(step: Callable[..., Any], constants: Sequence[Any]) -> None:
    """Raise for arrays that the step closes over and that no later call could read."""
    for value in constants:
        if isinstance(value, _compat.Tracer):
            raise TraceError(_CAPTURED_MSG.format(name=step_name(step)))
        if isinstance(value, jax.Array) and value.is_deleted():
            shape = f"{value.dtype}[{','.join(map(str, value.shape))}]"
            raise ArgumentError(_DELETED_MSG.format(name=step_name(step), shape=shape))


def _named(call: Call, donated: Which) -> frozenset[int | str]:
    """Arguments that are donated, by place among the positional ones that are no settings, or by keyword."""
    positions = donated.positions(call.args)
    return frozenset(
        i for i, position in enumerate(call.dynamic) if position in positions
    ) | donated.keywords(call.kwargs)


def build_program(
    closed: Any,
    *,
    in_example: Any,
    out_example: Any,
    donate: Container[int | str] | None,
    argnums: Sequence[int],
    static_argnums: tuple[int, ...] = (),
) -> Program:
    """Turn a closed jaxpr of ``f(dynamic_args, kwargs)`` into a `Program`.

    Args:
      donate: positions among ``dynamic_args`` and names among ``kwargs``; None: arguments that come back updated.
    """
    in_tree = jax.tree.structure(in_example)
    in_keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(in_example)[0]]
    out_keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(out_example)[0]]
    in_paths = tuple(argument_path(path, argnums) for path in in_keys)
    builder = Builder()
    jaxpr = closed.jaxpr
    inputs = [builder.add(var.aval, "input", path) for var, path in zip(jaxpr.invars, in_paths, strict=True)]
    outputs = builder.inline(jaxpr, closed.consts, inputs, "")
    named = tuple(donate is not None and _argument(path) in donate for path in in_keys)
    ins = [Leaf.of(path[1:], builder.tensors[t]) for path, t in zip(in_keys, inputs, strict=True)]
    outs = [Leaf.of(path, builder.tensors[t]) for path, t in zip(out_keys, outputs, strict=True)]
    parts = builder.tensors, builder.equations, inputs
    pairs = pair_state(ins, outs, Successors(*parts), Dependence(*parts), named)
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
        fingerprint=fingerprint_of(builder.tensors, equations, regions, inputs, outputs, donated),
        regions=regions,
    )


def _argument(path: tuple[Any, ...]) -> int | str:
    """Place or keyword of the argument that a leaf belongs to."""
    return path[1].idx if path[0].idx == 0 else path[1].key


def _trace_error(step: Callable[..., Any], error: Exception, call: Call) -> TraceError:
    frame = _user_frame(error)
    causes = ((cause, fix) for kind, cause, fix in _CAUSES if isinstance(error, kind))
    cause, fix = next(causes, _STEP_FAILS)
    if (cause, fix) == _STEP_FAILS and (given := call.numbers()):
        cause, fix = f"{given} holds numbers, and a shape was meant", "jax.ShapeDtypeStruct(shape, dtype)"
    if isinstance(error, NameError) and "unbound axis name" in str(error):
        cause = "a reduction by hand over the axis of a mesh or a pmap (jax.lax.pmean, psum, axis_index)"
        fix = "drop it, since the planner puts the reductions where they are needed; or bind the axis by jax.shard_map"
    if "metadata fields of pytree" in str(error):
        cause = "an array, or another value without a simple ==, is metadata of a class in the arguments"
        fix = "make it a field with leaves (pytree_node=True), or a tuple of numbers"
    settings = call.settings()
    if settings:
        cause += f"; taken as settings, being no arrays: {settings}"
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
