"""A plan on devices: its mesh, the shardings of its arguments and results, and batches placed as it has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxplan.frontend import _nnx
from jaxplan.frontend._static_leaves import release_statics
from jaxplan.mesh import AxesNames, axis_groups
from jaxplan.partition import compiler_options
from jaxplan.plans._plan_data import PlanData

if TYPE_CHECKING:
    import jax

    from jaxplan.plans._logical_axes import LogicalAxisRules


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlacedPlan(PlanData):
    """The part of `jaxplan.Plan` that says where arrays are."""

    def mesh(self, devices: Sequence[Any] | None = None, *, names: AxesNames | None = None) -> jax.sharding.Mesh:
        """The mesh of atomic axes over ``devices`` (default: the first ones of `jax.devices()`).

        Args:
          names: of groups of atomic axes, as ``axes=`` of `jaxplan.plan`: sizes, outermost first, such as
            ``{"data": 4, "tensor": 2}``, or axes, such as ``{"tensor": ("gpu1", "gpu2")}``. `specs`, `in_shardings` and
            `out_shardings` speak of them.

        Raises:
          PlanMismatchError: fewer devices than the plan was made for.
          ArgumentError: names that do not group the axes.

        Example:
          >>> plan.mesh(names={"data": 4, "tensor": 2}).shape  # doctest: +SKIP
          OrderedDict({'data': 4, 'tensor': 2})
        """
        from jaxplan.partition import device_mesh, named_mesh

        mesh = device_mesh(self.topology, devices)
        return mesh if names is None else named_mesh(mesh, axis_groups(names, self.topology))

    def specs(self, mesh: Any) -> tuple[Any, Any]:
        """`in_specs` and `out_specs` in the names of any mesh that groups the axes of the plan, abstract ones too.

        Raises:
          PlanMismatchError: the mesh does not group them, or an array is split inside of one of its axes.

        Example:
          >>> mesh = plan.mesh(names={"data": 4, "tensor": 2})  # doctest: +SKIP
          >>> in_specs, out_specs = plan.specs(mesh)  # doctest: +SKIP
        """
        from jaxplan.partition import specs_over

        inputs = specs_over(mesh, self.topology, self.in_paths, self.input_shardings)
        outputs = specs_over(mesh, self.topology, self.out_paths, self.output_shardings)
        return self._in_tree(inputs), self._out_tree(outputs)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Options of XLA that the plan's price assumes; `jit` and `audit` compile with them.

        For a program of another kind with the same shardings: ``jax.jit(..., compiler_options=plan.compiler_options)``.
        Empty where the compiler's defaults are assumed, and for limits that ``XLA_FLAGS`` already sets.

        >>> import jax, jaxplan
        >>> x = jax.ShapeDtypeStruct((64, 8), "float32")
        >>> jaxplan.plan(lambda x: x * 2, x, topology="cpu:8").fastest().compiler_options
        {}
        """
        return compiler_options(self, self.topology.chip.aot_platform)

    def logical_axis_rules(self, logical: Any = None, *, mesh: Any = None) -> LogicalAxisRules:
        """The table of Flax's logical axis names that reproduces most of the plan, and the parameters that break it.

        Args:
          logical: parameters with sharding metadata of Linen or NNX, or their specs, ``nn.get_partition_spec(vars)`` or
            ``nnx.get_partition_spec(state)``; default: those of the arguments that the step was planned for.
          mesh: the table is in the names of its axes, see `specs`; default: the plan's.

        Raises:
          ArgumentError: there are no logical names, or they are of parameters that the step does not have.

        Example:
          >>> table = plan.logical_axis_rules(nn.get_partition_spec(variables))  # doctest: +SKIP
          >>> with nn.logical_axis_rules(table.rules):  # doctest: +SKIP
          ...     print(table.broken)
        """
        from jaxplan.partition import specs_over
        from jaxplan.plans._logical_axes import logical_axis_rules

        program = self.require_program().program
        axes = self.topology.axes
        specs = [sharding.partition_spec(axes) for sharding in self.input_shardings]
        if mesh is not None:
            specs = specs_over(mesh, self.topology, self.in_paths, self.input_shardings)
        logical = self._in_tree(range(len(specs))) if logical is None else logical
        shapes = [program.tensors[t].shape for t in program.inputs]
        return logical_axis_rules(logical, self.in_paths, self.in_roles, specs, shapes)

    @property
    def in_specs(self) -> Any:
        """PartitionSpecs in the tree of the arguments; by key path when the plan has no program."""
        return self._in_tree([sharding.partition_spec(self.topology.axes) for sharding in self.input_shardings])

    @property
    def out_specs(self) -> Any:
        """PartitionSpecs in the tree of the results; by key path when the plan has no program."""
        return self._out_tree([sharding.partition_spec(self.topology.axes) for sharding in self.output_shardings])

    def in_shardings(self, mesh: jax.sharding.Mesh | None = None) -> Any:
        """NamedShardings in the tree of the arguments, over a mesh as `specs` takes it (default: `mesh`)."""
        return self._in_tree(self._in_shardings(mesh))

    def out_shardings(self, mesh: jax.sharding.Mesh | None = None) -> Any:
        """NamedShardings in the tree of the results, over a mesh as `specs` takes it (default: `mesh`)."""
        from jaxplan.partition import out_shardings

        return self._out_tree(out_shardings(self, self.mesh() if mesh is None else mesh))

    def _in_shardings(self, mesh: Any) -> list[Any]:
        from jaxplan.partition import in_shardings

        return in_shardings(self, self.mesh() if mesh is None else mesh)

    def _in_tree(self, leaves: Sequence[Any]) -> Any:
        import jax

        if self.graph is None:
            return dict(zip(self.in_paths, leaves, strict=True))
        args, kwargs = _without_settings(jax.tree.unflatten(self.graph.program.in_tree, leaves))
        return (*args, kwargs) if kwargs else tuple(args)

    def _out_tree(self, leaves: Sequence[Any]) -> Any:
        import jax

        if self.graph is None:
            return dict(zip(self.out_paths, leaves, strict=True))
        return _without_settings(jax.tree.unflatten(self.graph.program.out_tree, leaves))

    def abstract_args(self, mesh: jax.sharding.Mesh | None = None) -> Any:
        """`jax.ShapeDtypeStruct` with shardings in the tree of the arguments, as Orbax takes them to restore a state.

        Example:
          >>> state = ocp.StandardCheckpointer().restore(path, plan.abstract_args()[0])  # doctest: +SKIP
        """
        import jax

        program = self.require_program().program
        tensors = [program.tensors[t] for t in program.inputs]
        shardings = self._in_shardings(mesh)
        return self._in_tree(
            [jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s) for t, s in zip(tensors, shardings, strict=True)]
        )

    @property
    def batch_sharding(self) -> Any:
        """Shardings of the batch: of the arguments that hold neither state nor parameters, in their trees.

        One such argument's own tree; a tuple of them where there are several.

        Example:
          >>> batch = jax.device_put(batch, plan.batch_sharding)  # doctest: +SKIP
        """
        from jaxplan.partition import batch_arguments

        shardings = self._in_shardings(None)
        found = [
            _without_settings(tree.unflatten(shardings[start : start + tree.num_leaves]))
            for start, tree in batch_arguments(self)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def batch(self, part: Any, devices: Sequence[Any] | None = None) -> Any:
        """The batch as arrays over the devices of all processes, of the part that each process has loaded.

        Parts follow each other in the order of processes; a leaf of the planned shape is the same in all of them.

        Args:
          part: this process's rows of what `batch_sharding` describes: one argument's tree, or a tuple of several.
          devices: as for `jit`.

        Raises:
          ArgumentError: a part has a shape that it cannot have (the last of a data set, say); in every process.

        Example:
          >>> state, loss = step(state, plan.batch({"x": rows, "y": labels}))  # doctest: +SKIP
        """
        from jaxplan.partition import Batches

        return Batches(self, self.mesh(devices)).place(part)

    def batches(
        self, parts: Iterable[Any], *, prefetch: int = 1, devices: Sequence[Any] | None = None
    ) -> Iterator[Any]:
        """`batch` for each part of an iterable, ``prefetch`` of them placed ahead of the one that is used.

        Raises:
          ProcessError: the parts of one process end before those of another; in every process.

        Example:
          >>> for batch in plan.batches(loader):  # doctest: +SKIP
          ...     state, loss = step(state, batch)
        """
        from jaxplan.partition import Batches

        return Batches(self, self.mesh(devices)).ahead(parts, prefetch)


def _without_settings(tree: Any) -> Any:
    """A tree for people: NNX objects as their states, and None in place of static leaves."""
    return _nnx.states(release_statics(tree, by=lambda value: None))
