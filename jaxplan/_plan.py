"""A plan: plain data that says how every operator is laid out, and the calls that run, save and audit it."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxplan import _nnx
from jaxplan._errors import PlanFileError, PlanMismatchError, UnsupportedError
from jaxplan._plan_json import FRONTIER_SCHEMA, MAX_FILE_BYTES, PLAN_SCHEMA, plan_from_json, plan_to_json
from jaxplan.cost import Prediction
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Layout, Topology

if TYPE_CHECKING:
    import jax

    from jaxplan._frontier import Frontier
    from jaxplan.partition import Audit, CompiledReport, PlannedFunction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """How one step runs on one topology.

    Attributes:
      name: ``plan`` for a point of the frontier, the name of the strategy for a reference.
      topology: the machine it was made for.
      fingerprint: of the program it was made for.
      configurations: per group of operators, the atomic axes that split each of its factor classes.
      repeated: indices of reads whose resharded copy is made again in the backward pass.
      in_paths, out_paths: key paths of the flattened arguments and results.
      in_layouts, out_layouts: a layout for each.
      prediction: predicted cost of one step on one device.
      lower_bound_seconds: additive cost that no plan of at most this memory beats; 0 when unknown.
      summary: one line on what is split.
      graph: the analysed program; None in a plan that was loaded without its step.
    """

    name: str
    topology: Topology
    fingerprint: str
    configurations: tuple[Configuration, ...]
    repeated: tuple[int, ...]
    in_paths: tuple[str, ...]
    out_paths: tuple[str, ...]
    in_layouts: tuple[Layout, ...]
    out_layouts: tuple[Layout, ...]
    prediction: Prediction
    lower_bound_seconds: float
    summary: str
    graph: StepGraph | None = None

    @property
    def time_seconds(self) -> float:
        """Predicted seconds of a step: compute plus communication, no overlap assumed."""
        return self.prediction.time_seconds

    @property
    def compute_seconds(self) -> float:
        return self.prediction.compute_seconds

    @property
    def communication_seconds(self) -> float:
        return self.prediction.communication_seconds

    @property
    def memory_bytes(self) -> int:
        """Predicted peak per device: arguments + outputs - aliased + temporaries."""
        return self.prediction.memory_bytes

    @property
    def memory_parts(self) -> Mapping[str, int]:
        """Bytes of the peak by what they hold."""
        return self.prediction.memory_parts

    def __repr__(self) -> str:
        return (
            f"Plan({self.name!r} on {self.topology.name}: {self.time_seconds * 1e3:.4g} ms, "
            f"{self.memory_bytes / 2**30:.3f} GiB per device; {self.summary})"
        )

    def mesh(self, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        """The mesh of atomic axes over ``devices`` (default: the first ones of `jax.devices()`).

        Raises:
          PlanMismatchError: fewer devices than the plan was made for.
        """
        from jaxplan.partition import device_mesh

        return device_mesh(self.topology, devices)

    @property
    def in_specs(self) -> Any:
        """PartitionSpecs in the tree of the arguments; by key path when the plan has no program."""
        return self._in_tree([layout.partition_spec(self.topology.axes) for layout in self.in_layouts])

    @property
    def out_specs(self) -> Any:
        """PartitionSpecs in the tree of the results; by key path when the plan has no program."""
        return self._out_tree([layout.partition_spec(self.topology.axes) for layout in self.out_layouts])

    def in_shardings(self, mesh: jax.sharding.Mesh | None = None) -> Any:
        """NamedShardings in the tree of the arguments."""
        return self._in_tree(self._shardings(self.in_layouts, mesh))

    def out_shardings(self, mesh: jax.sharding.Mesh | None = None) -> Any:
        """NamedShardings in the tree of the results."""
        return self._out_tree(self._shardings(self.out_layouts, mesh))

    def _shardings(self, layouts: Sequence[Layout], mesh: Any) -> list[Any]:
        from jax.sharding import NamedSharding

        mesh = mesh if mesh is not None else self.mesh()
        return [NamedSharding(mesh, layout.partition_spec(self.topology.axes)) for layout in layouts]

    def _in_tree(self, leaves: Sequence[Any]) -> Any:
        import jax

        if self.graph is None:
            return dict(zip(self.in_paths, leaves, strict=True))
        args, kwargs = _nnx.states(jax.tree.unflatten(self.graph.program.in_tree, leaves))
        return (*args, kwargs) if kwargs else tuple(args)

    def _out_tree(self, leaves: Sequence[Any]) -> Any:
        import jax

        if self.graph is None:
            return dict(zip(self.out_paths, leaves, strict=True))
        return _nnx.states(jax.tree.unflatten(self.graph.program.out_tree, leaves))

    def jit(
        self,
        devices: Sequence[Any] | None = None,
        backend: str = "jit",
        donate_argnums: Sequence[int] | None = None,
    ) -> PlannedFunction:
        """The step, running as planned; like `jax.jit`: call it, or ``.lower(*args).compile()``.

        Args:
          devices: at least as many as the topology has, in its order; default `jax.devices()`.
          backend: ``"jit"``.
          donate_argnums: which arguments may be overwritten; default: those that the plan was made for.

        Raises:
          UnsupportedError: ``backend="shard_map"``, which is not built yet.
          PlanMismatchError: the plan has no program, or there are too few devices.
        """
        from jaxplan.partition import PlannedFunction

        if backend != "jit":
            known = "expected 'jit'; 'shard_map' (the whole step as one manual program) is not built yet"
            raise UnsupportedError(f"backend {backend!r} is not available: {known}")
        self.require_program()
        return PlannedFunction(self, self.mesh(devices), donate_argnums)

    def require_program(self) -> StepGraph:
        """The analysed program, or a clear error for a plan that was loaded without its step."""
        if self.graph is None:
            raise PlanMismatchError(
                "this plan was loaded without its program and cannot run.\n"
                "  expected: the step it was made for\n"
                "  fix: jaxplan.load(path, step, *example_args) checks the fingerprint and binds the program"
            )
        return self.graph

    def shard(self, args: Any, devices: Sequence[Any] | None = None) -> Any:
        """Place arguments (a tuple, in order) as the plan wants them; returns the placed tuple."""
        return self.jit(devices).shard(*args)

    def explain(self) -> str:
        """What is split, what is communicated and what the memory holds, for people."""
        from jaxplan._explain import explain

        return explain(self)

    def compile_report(self, cache_dir: str | Path | None = None) -> CompiledReport:
        """Compile this plan for its topology without the devices, in a child process."""
        from jaxplan.partition import compile_plan

        return compile_plan(self, cache_dir=cache_dir)

    def audit(self, cache_dir: str | Path | None = None) -> Audit:
        """Compile the plan and set predicted against compiled memory, FLOPs and collectives.

        Raises:
          MissingExtraError: the compiler plugin for the topology is not installed.
          AuditError: the plan does not compile.
        """
        from jaxplan.partition import audit_plan

        return audit_plan(self, cache_dir=cache_dir)

    def to_json(self) -> dict[str, Any]:
        """Plain data, the same for the same plan in every process."""
        return plan_to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Read what `to_json` wrote; the plan has no program."""
        return cls(**plan_from_json(data))

    def save(self, path: str | Path) -> None:
        """Write JSON: schema version, no time stamps, deterministic."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(
    path: str | Path,
    step: Callable[..., Any] | None = None,
    *args: Any,
    static_argnums: Sequence[int] = (),
    **kwargs: Any,
) -> Plan | Frontier:
    """Read a plan or a frontier.

    Args:
      path: a file that `Plan.save` or `Frontier.save` wrote.
      step: the step; when given with its arguments the plan can run, and the program's fingerprint is checked.
        A step decorated with `auto` that has been called needs no arguments.
      args, kwargs: arguments of the step, arrays or `jax.ShapeDtypeStruct`.

    Raises:
      PlanFileError: not a plan file, another schema version, or too large.
      PlanMismatchError: the step is not the one that the plan was made for; names what differs.
    """
    data = _read_json(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == PLAN_SCHEMA:
        return _bound(Plan.from_json(data), step, args, kwargs, static_argnums)
    if schema == FRONTIER_SCHEMA:
        from jaxplan._frontier import Frontier

        bind = functools.partial(_bound, step=step, args=args, kwargs=kwargs, static_argnums=static_argnums)
        return Frontier.from_json(data, lambda item: bind(Plan.from_json(item)))
    raise PlanFileError(
        f"{str(path)!r} has schema {schema!r}; expected {PLAN_SCHEMA!r} or {FRONTIER_SCHEMA!r}: "
        "is it a file that Plan.save or Frontier.save wrote?"
    )


def _read_json(path: str | Path) -> Any:
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PlanFileError(
                f"{str(path)!r} has {path.stat().st_size} bytes; a plan file has at most {MAX_FILE_BYTES}"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PlanFileError(f"cannot read plan file {str(path)!r}: {error}") from error


def _bound(
    plan: Plan, step: Any, args: tuple, kwargs: Mapping[str, Any], static_argnums: Sequence[int]
) -> Plan:
    from jaxplan._planner import analyse_step

    if step is None:
        return plan
    graph = getattr(step, "graph", None) if not args and not kwargs else None
    if graph is None:
        if not args and not kwargs:
            raise PlanMismatchError(
                "load was given a step but no arguments to trace it with; "
                "give example arguments: jaxplan.load(path, step, *args)"
            )
        graph = analyse_step(step, args, kwargs, donate_argnums=None, static_argnums=static_argnums)
    _check_same_program(plan, graph)
    _check_same_groups(plan, graph)
    return dataclasses.replace(plan, graph=graph)


def _check_same_groups(plan: Plan, graph: StepGraph) -> None:
    """The program can be the same and its groups others: they belong to the jaxplan that made the plan."""
    sizes = [axis.size for axis in plan.topology.axes]
    fits = len(plan.configurations) == len(graph.spaces) and all(
        len(config) == len(space.classes)
        and all(
            cls.divisible_by(math.prod(sizes[a] for a in axes)) for cls, axes in zip(space.classes, config)
        )
        for space, config in zip(graph.spaces, plan.configurations, strict=True)
    )
    leaves = len(plan.in_layouts) == len(graph.program.inputs) and len(plan.out_layouts) == len(
        graph.program.outputs
    )
    if not (fits and leaves):
        raise PlanMismatchError(
            f"the plan lays out {len(plan.configurations)} groups of operators otherwise than this jaxplan forms them "
            f"({len(graph.spaces)} groups).\n"
            "  likely cause: another version of jaxplan wrote the file, or it was edited\n"
            "  fix: plan again with jaxplan.plan"
        )


def _check_same_program(plan: Plan, graph: StepGraph) -> None:
    program = graph.program
    if program.fingerprint == plan.fingerprint:
        return
    ours, theirs = dict.fromkeys(program.in_paths), dict.fromkeys(plan.in_paths)
    missing = [p for p in theirs if p not in ours][:3]
    added = [p for p in ours if p not in theirs][:3]
    detail = "the arguments have the same structure; shapes, dtypes or the step's own code differ"
    if missing or added:
        detail = f"arguments only in the plan: {missing or 'none'}; only in the step: {added or 'none'}"
    raise PlanMismatchError(
        "the plan was made for another program.\n"
        f"  plan:     {plan.fingerprint[:16]} ({len(plan.in_paths)} input leaves)\n"
        f"  step:     {program.fingerprint[:16]} ({len(program.in_paths)} input leaves)\n"
        f"  differs:  {detail}\n"
        "  fix: plan again with jaxplan.plan, or give load the step and arguments the plan was made for"
    )
