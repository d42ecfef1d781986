"""The callable that runs a plan: like `jax.jit`, with the plan's shardings and donation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxplan import _compat
from jaxplan._errors import ArgumentError, PlanMismatchError
from jaxplan.cost import find_flows, plan_transfers
from jaxplan.mesh import Topology
from jaxplan.partition._replay import Replay
from jaxplan.partition._steps import Executor

if TYPE_CHECKING:
    from jaxplan._plan import Plan


def device_mesh(topology: Topology, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh of the atomic axes over the first devices given (default `jax.devices()`)."""
    devices = list(devices) if devices is not None else jax.devices()
    if len(devices) < topology.num_devices:
        raise PlanMismatchError(
            f"the plan needs {topology.num_devices} devices ({topology.name}), and {len(devices)} are there "
            f"({', '.join(map(str, devices[:4]))}{' ...' if len(devices) > 4 else ''}).\n"
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
    return Replay(graph, plan.configurations, flows, transfers)


def jit_flat(plan: Plan, mesh: Any, donate: Sequence[bool]) -> Any:
    """`jax.jit` of the planned program over flat leaves."""
    replay = replay_of(plan)
    executor = Executor(mesh, plan.topology.axes)

    def planned_step(*leaves: Any) -> tuple[Any, ...]:
        return tuple(replay.run(executor, leaves))

    def shardings(layouts: Any) -> tuple[NamedSharding, ...]:
        return tuple(NamedSharding(mesh, executor.spec(layout)) for layout in layouts)

    return jax.jit(
        planned_step,
        in_shardings=shardings(plan.in_layouts),
        out_shardings=shardings(plan.out_layouts),
        donate_argnums=tuple(i for i, d in enumerate(donate) if d),
    )


class PlannedFunction:
    """A step bound to devices; compiled at the first call.

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
        self._jitted = jit_flat(plan, mesh, self._donate)
        self._compiled: Any = None

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

    @functools.cached_property
    def _in_shardings(self) -> tuple[NamedSharding, ...]:
        axes = self.plan.topology.axes
        return tuple(NamedSharding(self.mesh, layout.partition_spec(axes)) for layout in self.plan.in_layouts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._place(self._flatten(args, kwargs))
        if self._compiled is None:
            self._compiled = self._jitted.lower(*leaves).compile()
        return jax.tree.unflatten(self._graph.program.out_tree, self._compiled(*leaves))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Lowered` over flat leaves; arguments may be `jax.ShapeDtypeStruct`."""
        leaves = self._flatten(args, kwargs)
        return self._jitted.lower(
            *[self._abstract(x, s) for x, s in zip(leaves, self._in_shardings, strict=True)]
        )

    def shard(self, *args: Any, **kwargs: Any) -> Any:
        """Place the dynamic arguments as the plan wants them; returns the tuple of arguments."""
        leaves = self._place(self._flatten(args, kwargs))
        placed, placed_kwargs = jax.tree.unflatten(self._graph.program.in_tree, leaves)
        return (*placed, placed_kwargs) if placed_kwargs else tuple(placed)

    def _flatten(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        program = self._graph.program
        dynamic = [arg for i, arg in enumerate(args) if i not in program.static_argnums]
        leaves, tree = jax.tree.flatten((dynamic, kwargs))
        if tree != program.in_tree:
            raise PlanMismatchError(
                "the arguments have another structure than those the plan was made for.\n"
                f"  given:    {tree}\n  expected: {program.in_tree}\n"
                "  fix: plan again for these arguments"
            )
        for leaf, t, path in zip(leaves, program.inputs, program.in_paths, strict=True):
            tensor = program.tensors[t]
            if np.shape(leaf) != tensor.shape:
                raise PlanMismatchError(
                    f"argument {path} has shape {np.shape(leaf)}; the plan was made for {tensor.shape}.\n"
                    "  fix: plan again for these arguments"
                )
            if isinstance(leaf, jax.Array) and leaf.dtype != tensor.dtype:
                raise PlanMismatchError(
                    f"argument {path} is {leaf.dtype}; the plan was made for {tensor.dtype}.\n"
                    "  fix: convert it, or plan again for these arguments"
                )
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ArgumentError(
                    f"argument {path} was deleted: an earlier call was given it and could reuse its buffer.\n"
                    "  likely cause: the step returns it updated, so the plan donates it\n"
                    "  fix: pass on what the step returned, or donate nothing (donate_argnums=())"
                )
        return leaves

    def _place(self, leaves: Sequence[Any]) -> list[Any]:
        return [
            leaf if getattr(leaf, "sharding", None) == sharding else jax.device_put(leaf, sharding)
            for leaf, sharding in zip(leaves, self._in_shardings, strict=True)
        ]

    @staticmethod
    def _abstract(leaf: Any, sharding: NamedSharding) -> Any:
        aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False)
        )
