"""The callable that runs a plan: like `jax.jit`, with the plan's shardings and donation."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxplan import _compat, _nnx
from jaxplan._errors import ArgumentError, PlanMismatchError
from jaxplan.cost import find_flows, plan_transfers
from jaxplan.mesh import Topology
from jaxplan.partition import _find_nan
from jaxplan.partition._combiner import combiner_options
from jaxplan.partition._donation import DonatedBuffers, unaliased
from jaxplan.partition._nested import nested_program
from jaxplan.partition._placement import Placer
from jaxplan.partition._replay import Replay
from jaxplan.partition._steps import Executor

if TYPE_CHECKING:
    from jaxplan._plan import Plan


def device_mesh(topology: Topology, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh of the atomic axes over the first devices given (default `jax.devices()`)."""
    devices = list(devices) if devices is not None else jax.devices()
    if len(devices) < topology.num_devices:
        raise PlanMismatchError(
            f"the plan needs {topology.num_devices} devices ({topology.name}), and {len(devices)} are there.\n"
            f"  given:    {', '.join(map(str, devices[:4]))}{' ...' if len(devices) > 4 else ''}\n"
            f"  expected: at least {topology.num_devices} devices\n"
            "  likely cause: it was planned for another machine\n"
            "  fix: plan for the devices present (topology=None), or on CPU ask for virtual ones with "
            "jax.config.update('jax_num_cpu_devices', n) before the first use of JAX"
        )
    sizes = tuple(axis.size for axis in topology.axes) or (1,)
    names = tuple(axis.name for axis in topology.axes) or ("device",)
    return Mesh(np.array(devices[: topology.num_devices]).reshape(sizes), names)


def abstract_mesh(topology: Topology) -> Any:
    """The same mesh without devices, for lowering on a machine that has none."""
    sizes = tuple(axis.size for axis in topology.axes) or (1,)
    names = tuple(axis.name for axis in topology.axes) or ("device",)
    return _compat.auto_abstract_mesh(sizes, names)


def replay_of(plan: Plan) -> Replay:
    """Bind a plan to its program."""
    graph = plan.require_program()
    flows = find_flows(graph)
    transfers = plan_transfers(graph, plan.topology, flows, plan.configurations, frozenset(plan.repeated))
    return Replay(graph, plan.configurations, flows, transfers, topology=plan.topology)


def jit_flat(
    plan: Plan,
    mesh: Any,
    donate: Sequence[bool],
    compiler_options: Mapping[str, str] | None = None,
    *,
    keep_unused: bool = False,
) -> Any:
    """`jax.jit` of the planned program over flat leaves; those that it does not read leave it unless kept."""
    replay = replay_of(plan)
    chip = plan.topology.chip
    executor = Executor(mesh, plan.topology.axes, tiled=chip.is_tiled, ordered=chip.is_gpu)

    def planned_step(*leaves: Any) -> tuple[Any, ...]:
        return tuple(replay.run(executor, leaves))

    def shardings(layouts: Any) -> tuple[NamedSharding, ...]:
        return tuple(NamedSharding(mesh, executor.spec(layout)) for layout in layouts)

    return jax.jit(
        planned_step,
        in_shardings=shardings(plan.in_layouts),
        out_shardings=shardings(plan.out_layouts),
        donate_argnums=tuple(i for i, d in enumerate(donate) if d),
        compiler_options=dict(compiler_options) if compiler_options else None,
        keep_unused=keep_unused,
    )


class PlannedFunction:
    """A step bound to devices; compiled at the first call.

    Inside another traced function it becomes part of that function's program, without donation.

    Attributes:
      plan: the plan that it runs.
      mesh: the devices.
    """

    def __init__(self, plan: Plan, mesh: Mesh, donate_argnums: Sequence[int] | None = None) -> None:
        self.plan, self.mesh = plan, mesh
        self._graph = plan.require_program()
        program = self._graph.program
        self._donate = list(program.donated)
        if donate_argnums is not None:
            self._donate = self._donated(donate_argnums)
        options = combiner_options(plan, mesh.devices.flat[0].platform)
        self._jitted = jit_flat(plan, mesh, self._donate, options)
        tensors = [program.tensors[t] for t in program.inputs]
        self._wanted = [(p, t.shape, t.dtype) for p, t in zip(program.in_paths, tensors, strict=True)]
        axes = plan.topology.axes
        shardings = [NamedSharding(mesh, layout.partition_spec(axes)) for layout in plan.in_layouts]
        self._place = Placer(program.in_paths, shardings)
        local_types = [
            (sharding.shard_shape(tensor.shape), tensor.dtype)
            for sharding, tensor in zip(shardings, tensors, strict=True)
        ]
        self._buffers = DonatedBuffers(program.in_paths, self._donate, local_types)
        self._lock = threading.Lock()
        self._compiled: Any = None
        self._nested: Any = None
        self._checked: Any = None

    def _donated(self, donate_argnums: Sequence[int]) -> list[bool]:
        """Per leaf, whether it belongs to one of the arguments."""
        program = self._graph.program
        arguments, _ = jax.tree.unflatten(program.in_tree, program.in_paths)
        count = len(arguments) + len(program.static_argnums)
        wrong = [i for i in donate_argnums if not -count <= i < count]
        if wrong:
            raise ArgumentError(
                f"donate_argnums names arguments {wrong}, and the step has {count} positional arguments; "
                "keyword arguments have no number"
            )
        wanted = tuple(f"[{i % count}]" for i in donate_argnums)
        return (
            [path.startswith(wanted) for path in program.in_paths]
            if wanted
            else [False] * len(program.in_paths)
        )

    @property
    def num_compilations(self) -> int:
        """How many programs were compiled: none while it was only called inside other traced functions."""
        return (self._compiled is not None) + (self._checked is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _nnx.opened(args, kwargs, self._graph.program.static_argnums) as call:
            return call.close(self.run_opened(call))

    def run_opened(self, call: _nnx.Opened) -> Any:
        """The results of a call whose NNX objects are opened; they are to be closed."""
        leaves = self._flatten(call)
        placed = leaves if _any_traced(leaves) else self._place(leaves)
        if _any_traced(placed):
            results = self._nested_call(leaves)
        elif _find_nan.is_checking():
            results = self._checked_call(placed)
        else:
            results = self._compiled_call(self._buffers.own(leaves, placed))
        return jax.tree.unflatten(self._graph.program.out_tree, results)

    def _compiled_call(self, leaves: Sequence[Any]) -> Any:
        if self._compiled is None:
            with self._lock:  # of two threads that call first at once, one compiles
                if self._compiled is None:
                    self._compiled = self._jitted.lower(*leaves).compile()
        results = self._compiled(*leaves)
        self._buffers.remember(leaves, results)
        return results

    def _nested_call(self, leaves: Sequence[Any]) -> Any:
        """Inside another trace: the planned program is staged into it."""
        if self._nested is None:
            self._nested = nested_program(self._undonated())
        return self._nested(*leaves)

    def _checked_call(self, leaves: Sequence[Any]) -> Any:
        """Under `jax_debug_nans`: nothing is donated, as under `jax.jit`, so that the error can be traced back."""
        if self._checked is None:
            with self._lock:
                if self._checked is None:
                    self._checked = self._undonated().lower(*leaves).compile()
        with _find_nan.unchecked():
            results = self._checked(*leaves)
        _find_nan.check_results(self._graph.program, leaves, results)
        return results

    def _undonated(self) -> Any:
        return jit_flat(self.plan, self.mesh, [False] * len(self._donate))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Lowered` over flat leaves; arguments may be `jax.ShapeDtypeStruct`."""
        with _nnx.opened(args, kwargs, self._graph.program.static_argnums) as call:
            leaves = self._flatten(call)
        return self._jitted.lower(
            *[self._abstract(x, s) for x, s in zip(leaves, self._place.shardings, strict=True)]
        )

    def shard(self, *args: Any, **kwargs: Any) -> Any:
        """Place the dynamic arguments as the plan wants them; returns the tuple of arguments, NNX objects copied."""
        with _nnx.opened(args, kwargs, self._graph.program.static_argnums) as call:
            leaves = self._flatten(call)
            leaves = unaliased(leaves, self._place(leaves), range(len(leaves)))
        placed, placed_kwargs = _nnx.closed(jax.tree.unflatten(self._graph.program.in_tree, leaves))
        return (*placed, placed_kwargs) if placed_kwargs else tuple(placed)

    def _flatten(self, call: _nnx.Opened) -> list[Any]:
        program = self._graph.program
        dynamic = [arg for i, arg in enumerate(call.args) if i not in program.static_argnums]
        leaves, tree = jax.tree.flatten((dynamic, dict(call.kwargs)))
        if tree != program.in_tree:
            raise PlanMismatchError(
                "the arguments have another structure than those the plan was made for.\n"
                f"  given:    {tree}\n  expected: {program.in_tree}\n"
                "  fix: plan again for these arguments"
            )
        for leaf, (path, shape, dtype) in zip(leaves, self._wanted, strict=True):
            _check_leaf(leaf, path, shape, dtype)
        return leaves

    @staticmethod
    def _abstract(leaf: Any, sharding: NamedSharding) -> Any:
        aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False)
        )


def _check_leaf(leaf: Any, path: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise when an argument is not of the kind that the plan was made for; called for every leaf of every step."""
    is_array = isinstance(leaf, jax.Array)
    aval: Any = leaf if is_array or isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    if aval.shape != shape:
        raise PlanMismatchError(
            f"argument {path} has shape {aval.shape}; the plan was made for {shape}.\n"
            "  fix: plan again for these arguments"
        )
    if aval.dtype != dtype:
        raise PlanMismatchError(
            f"argument {path} is {aval.dtype}; the plan was made for {dtype}.\n"
            "  fix: convert it, or plan again for these arguments"
        )
    if is_array and not isinstance(leaf, _compat.Tracer) and leaf.is_deleted():
        raise ArgumentError(
            f"argument {path} was deleted: an earlier call was given it and could reuse its buffer.\n"
            "  likely cause: the step returns it updated, so the plan donates it\n"
            "  fix: pass on what the step returned, or donate nothing (donate_argnums=())"
        )


def _any_traced(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, _compat.Tracer) for leaf in leaves)
