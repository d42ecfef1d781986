"""A plan: plain data that says how every operator is laid out, and the calls that run, save and audit it."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxplan.core._files import write_whole
from jaxplan.errors import ArgumentError
from jaxplan.frontend._backend import check_backend
from jaxplan.mesh import AxesNames, Sharding
from jaxplan.plans._placed_plan import PlacedPlan
from jaxplan.plans._plan_json import plan_from_json, plan_to_json

if TYPE_CHECKING:
    from jaxplan.audit import Audit, CompiledReport
    from jaxplan.partition import PlannedFunction
    from jaxplan.plans._checkpoints import Checkpoints
    from jaxplan.plans._diff import Difference


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Plan(PlacedPlan):
    """How one step runs on one topology.

    Attributes:
      name: ``plan`` for a point of the frontier, the name of the strategy for a reference.
      topology: the machine it was made for.
      fingerprint: of the program it was made for.
      donate_argnums: the arguments that were donated by name; None when those that come back updated are.
      configurations: per group of operators, the atomic axes that split each of its factor classes.
      repeated: indices of reads that gather their copy again in the backward pass.
      in_paths, out_paths: key paths of the flattened arguments and results.
      in_avals: dtype and shape of each argument, such as ``float32[16,32]``.
      in_roles: of each argument, ``parameter``, ``state`` (optimizer slots, statistics, caches) or ``data``.
      argument_names: of the positional parameters of the step, as far as they are known.
      not_kept: dimensions that do not have the layout which ``like`` or ``keep_layout`` asks for, and why.
      pins: the pins that it was searched under, and the arguments that each limits.
      in_dims: of each argument, the name of each dimension; empty where it has none.
      input_shardings, output_shardings: the sharding of each argument and result, over the atomic axes.
      prediction: predicted cost of one step on one device.
      lower_bound_seconds: seconds that no plan of at most this memory beats, simulated, or with ``overlap=False`` of
        compute and communication in turn; 0 when unknown.
      gap: how far the plan's own seconds are above that bound, a fraction of it; 0: proven optimal for the cost
        model; None: unknown.
      most_configurations: bound and gap are within so many configurations an operator; None: all that there are.
      outline: the dimensions split, and the arrays sharded, gathered and recomputed.
      remat: which blocks of the forward pass the backward pass recomputes; None: as the step says.
      sequences: how attention is worked through in blocks of keys (docs/long_sequences.md); None: as the step says.
      microbatches: the slices in which the batch is worked through; None: as the step says.
      recomputed_loops: what is recomputed of layers in loops (docs/remat.md); None: as the step says.
      sort_blocks: the blocks in which rows are sorted for ragged dots (docs/experts.md); None: as the step says.
      offload: the arguments that live in the memory of the host between two steps; None: none.
      verified: the compiler's figures of the plan, once `jaxplan.plan(..., verify=True)` has asked for them, or it was
        compiled to run.
      graph: the analysed program; None in a plan that was loaded without its step.
      decided: the lowering decisions, see `lowering`; None in a plan of an older file that was loaded without its step.

    >>> import jax, jaxplan
    >>> x = jax.ShapeDtypeStruct((64, 8), "float32")
    >>> plan = jaxplan.plan(lambda x: x * 2, x, topology="cpu:8").fastest()
    >>> plan.in_specs[0], plan.memory_bytes  # a device has 256 bytes of the argument, and of the result
    (P(('cpu0', 'cpu1', 'cpu2'), None), 512)
    """

    def _repr_html_(self) -> str:
        from jaxplan.plans._notebook import plan_html

        return plan_html(self)

    def jit(
        self,
        devices: Sequence[Any] | None = None,
        backend: str = "jit",
        donate_argnums: Sequence[int] | None = None,
    ) -> PlannedFunction:
        """The step, running as planned; like `jax.jit`: call it, or ``.lower(*args).compile()``.

        Args:
          devices: at least as many as the topology has, in its order; default `jax.devices()`.
          backend: ``"jit"`` (constraints, and the compiler's partitioner behind them) or ``"shard_map"`` (the whole
            step as one manual program, docs/lowering.md).
          donate_argnums: which arguments may be overwritten; default: those that the plan was made for.

        Raises:
          ArgumentError: there is no such backend.
          PlanMismatchError: the plan has no program, or there are too few devices.
        """
        from jaxplan.partition import PlannedFunction

        known = check_backend(backend)
        self.require_program()
        return PlannedFunction(self, self.mesh(devices), donate_argnums, known)

    def shard(self, args: Any, devices: Sequence[Any] | None = None) -> Any:
        """Place arguments (a tuple, in order) as the plan wants them; returns the placed tuple."""
        if not isinstance(args, list | tuple):
            raise ArgumentError(
                f"shard() is given {type(args).__name__}; expected the arguments of the step as a tuple.\n"
                "  likely cause: one argument passed by itself\n"
                "  fix: plan.shard((params, batch))"
            )
        return self.jit(devices).shard(*args)

    def init(
        self, init_fn: Callable[..., Any], *args: Any, devices: Sequence[Any] | None = None, **kwargs: Any
    ) -> Any:
        """Create parameters, optimizer state, or the whole state, directly sharded: never whole on one device.

        Args:
          init_fn: returns one argument of the step, or a tuple of several; Linen, NNX, Equinox, Haiku, any trees.
          args, kwargs: of ``init_fn``; arrays that are sharded as the plan has them stay where they are.
          devices: as for `jit`.

        Returns:
          The result of ``init_fn(*args, **kwargs)``, with the values that it has on one device.

        Raises:
          ArgumentError: it returns no argument of the step; names the difference.
          PlanMismatchError: the plan has no program, or there are too few devices.

        Example:
          >>> params = plan.init(model.init, jax.random.key(0), x)  # doctest: +SKIP
          >>> opt_state = plan.init(optimizer.init, params)  # doctest: +SKIP
        """
        from jaxplan.partition import create

        self.require_program()
        return create(self, self.mesh(devices), init_fn, args, kwargs)

    def checkpoints(self, folder: str | Path, *, keep: int | None = None) -> Checkpoints:
        """Save and restore the state of the step with Orbax, whichever plan it was saved under; the plan's file beside.

        Args:
          folder: of this run; ``plan.json`` in it is the plan that `jaxplan.auto` takes to resume without planning.
          keep: how many checkpoints to keep, the latest; None: all.

        Raises:
          MissingExtraError: Orbax is not installed.

        Example:
          >>> with plan.checkpoints("run", keep=3) as checkpoints:  # doctest: +SKIP
          ...     checkpoints.save(number, params, opt_state)
        """
        from jaxplan.plans._checkpoints import Checkpoints

        self.require_program()
        shardings = self._in_shardings(None)
        return Checkpoints(self, shardings, folder, save_plan=self.save, keep=keep)

    def restore(self, folder: str | Path, number: int | None = None) -> Any:
        """The state of the latest checkpoint in a folder, or of one by number, placed as the plan has it.

        Returns:
          The argument of the step that is its state, or a tuple of several; bit for bit what was saved.

        Raises:
          ArgumentError: there is no such checkpoint.
          PlanMismatchError: it holds another state.

        Example:
          >>> params, opt_state = plan.restore("run")  # doctest: +SKIP
        """
        with self.checkpoints(folder) as checkpoints:
            return checkpoints.restore(number)

    def export(self, path: str | Path, *, names: AxesNames | None = None, backend: str = "jit") -> None:
        """Write the plan as a plain JAX script, which needs no jaxplan: mesh, specs by path, and the planned program.

        The script has a function of the name of the step, for the same arguments, and every constraint, collective and
        barrier of `jit` as a line; arrays that the step holds are in ``NAME.npz`` beside it (docs/export.md).

        Args:
          path: of the script, such as ``train_planned.py``.
          names: of the mesh axes, as for `mesh`; default: the coarsest groups that the program allows.
          backend: as for `jit`.

        Raises:
          UnsupportedError: the step holds Python code, such as a callback or a kernel, or takes NNX objects.
          ArgumentError: an operator is split inside of a group of ``names``.
          PlanMismatchError: the plan has no program.

        Example:
          >>> plan.export("train_planned.py")  # doctest: +SKIP
        """
        from jaxplan.partition.export import script_of, write_script

        write_script(path, script_of(self, names, check_backend(backend)))

    def explain(self, path: str | None = None) -> str:
        """Splits, communication and memory of the plan, for people; repeated layers in one line.

        Args:
          path: of an argument, such as ``params/block_3/mlp/up/kernel``, or a pattern (`fnmatch`) that may leave out
            leading parts: why it is laid out as it is, what other layouts would cost, and what forces it.

        Raises:
          ArgumentError: no argument matches the path.
          PlanMismatchError: a path was given, and the plan was loaded without its step.
        """
        from jaxplan.plans._explain import explain
        from jaxplan.plans._why import explain_leaves

        return explain(self) if path is None else explain_leaves(self, path)

    def diff(self, other: Plan) -> Difference:
        """The changes from this plan to another of the same step, and where the time and the memory go; print it.

        Raises:
          PlanMismatchError: the other plan is of another program.
        """
        from jaxplan.plans._diff import diff

        return diff(self, other)

    def save_timeline(self, path: str | Path) -> None:
        """Write the simulated step as JSON for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

        Example:
          >>> plan.save_timeline("step.json")  # doctest: +SKIP
        """
        self.simulate().save_timeline(path)

    def trace(self, path: str | Path) -> None:
        """Old name of `save_timeline`."""
        warnings.warn("Plan.trace(path) is now Plan.save_timeline(path)", DeprecationWarning, stacklevel=2)
        self.save_timeline(path)

    @property
    def in_layouts(self) -> tuple[Sharding, ...]:
        """Old name of `input_shardings`."""
        warnings.warn("Plan.in_layouts is now Plan.input_shardings", DeprecationWarning, stacklevel=2)
        return self.input_shardings

    @property
    def out_layouts(self) -> tuple[Sharding, ...]:
        """Old name of `output_shardings`."""
        warnings.warn("Plan.out_layouts is now Plan.output_shardings", DeprecationWarning, stacklevel=2)
        return self.output_shardings

    def compile_report(self, cache_dir: str | Path | None = None, backend: str = "jit") -> CompiledReport:
        """Compile this plan for its topology without the devices, in a child process; ``backend`` as for `jit`."""
        from jaxplan.audit import compile_plan

        return compile_plan(self, cache_dir=cache_dir, backend=check_backend(backend))

    def audit(self, cache_dir: str | Path | None = None, backend: str = "jit") -> Audit:
        """Compile the plan and set predicted against compiled memory, FLOPs and collectives.

        Args:
          cache_dir: a folder to keep compiled programs in.
          backend: as for `jit`.

        Raises:
          MissingExtraError: the compiler plugin for the topology is not installed.
          AuditError: the plan does not compile.
        """
        from jaxplan.audit import audit_plan

        return audit_plan(self, cache_dir=cache_dir, backend=check_backend(backend))

    def to_json(self) -> dict[str, Any]:
        """Plain data, the same for the same plan in every process."""
        return plan_to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Read the output of `to_json`; the plan has no program."""
        return cls(**plan_from_json(data))

    def save(self, path: str | Path) -> None:
        """Write JSON: schema version, no time stamps, deterministic. Raises SaveError where it cannot be written."""
        write_whole(path, json.dumps(self.to_json(), indent=1, sort_keys=True) + "\n")
