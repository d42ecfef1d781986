"""A plan as a Python module that needs JAX alone: mesh, specs by path, and the planned program as calls of `jax.lax`.

The program is the one that `plan.jit` compiles: it is traced with its constraints, its manual regions and its barriers,
and each equation becomes a line.
"""

from __future__ import annotations

import dataclasses
import io
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxplan.core import _compat
from jaxplan.core._files import write_whole
from jaxplan.core._paths import readable_path
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import PlanMismatchError, UnsupportedError
from jaxplan.frontend._arguments import step_name
from jaxplan.frontend._nnx import GraphNode
from jaxplan.frontend._static_leaves import is_static
from jaxplan.mesh import AxesNames, axis_groups
from jaxplan.partition._compiler_options import compiler_options
from jaxplan.partition._host_memory import HOST_KIND
from jaxplan.partition._meshes import abstract_mesh, device_mesh
from jaxplan.partition._plan_like import PlanLike
from jaxplan.partition._planned import planned_program
from jaxplan.partition.export._axis_names import AxisNames, coarsest
from jaxplan.partition.export._functions import Functions
from jaxplan.partition.export._literals import Literals
from jaxplan.partition.export._trees import ResultTrees

_NNX_MSG = (
    "the step takes Flax NNX objects and updates them in place, which a script of functions cannot do.\n"
    "  expected: a step of arrays in trees\n"
    "  fix: graphdef, state = nnx.split((model, optimizer)); plan a step that takes state, and merges and splits inside"
)
_RESERVED = frozenset({
    "P", "np", "jax", "jnp", "lax", "primitives", "results", "scan", "while_loop", "like", "is_array", "run",
    "planned_step", "Mesh", "NamedSharding", "Path", "MESH", "ARRAYS", "SHAPES", "IN_SPECS", "OUT_SPECS",
    "IN_SHARDINGS",
})  # fmt: skip
_DOCSTRING = '''"""`{step}` on {topology}: {summary}.

A plan of jaxplan as plain JAX: mesh, specs by path, and the planned program. Predicted: {seconds} a step, {memory} per
device; collectives: {collectives}. Written for JAX {version}; jaxplan is not needed.{lost}
"""'''
_JITTED = """SHAPES = [
{shapes}
]
IN_SHARDINGS = {inputs}
run = jax.jit(
    planned_step,
    in_shardings=IN_SHARDINGS,
    out_shardings={outputs},
    donate_argnums={donated},{options}
)"""
_IS_ARRAY = """def is_array(x):
    return isinstance(x, (jax.Array, np.ndarray, np.generic{numbers}))"""
_LIKE = """def like(tree, arrays):
    \"\"\"A tree of the structure of another, with other arrays.\"\"\"
    arrays = iter(arrays)
    return jax.tree.map(lambda x: next(arrays) if is_array(x) else x, tree)"""
_ENTRY = """def {name}(*args, **kwargs):
    \"\"\"The step on its arguments, which are placed as planned; the arrays of donated ones are used up.\"\"\"
    leaves = {leaves}
    if [jnp.shape(x) for x in leaves] != [shape.shape for shape in SHAPES]:
        raise ValueError(f"expected arrays of the shapes {{dict(zip(IN_SPECS, SHAPES))}}")
    results = run(*(jax.device_put(x, sharding) for x, sharding in zip(leaves, IN_SHARDINGS)))
    return {results}"""
_MAIN = """if __name__ == "__main__":
    print(run.lower(*SHAPES).compile().memory_analysis())"""



@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, and the arrays of a file beside it.

    Attributes:
      text: source; it reads ``NAME.npz`` beside itself where there are arrays.
      arrays: that the step holds and that are too large to be written, by name.
      dropped: lines of the step with debug callbacks, which the script does not have.
    """

    text: str
    arrays: Mapping[str, np.ndarray]
    dropped: tuple[str, ...]


def write_script(path: Any, script: Script) -> None:
    """Write the script, and its arrays beside it."""
    write_whole(path, script.text)
    if script.arrays:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **script.arrays)
        write_whole(re.sub(r"\.py$", "", str(path)) + ".npz", buffer.getvalue())


def script_of(plan: Any, names: AxesNames | None = None, backend: Any = "jit") -> Script:
    """The script of a plan.

    Args:
      plan: with its program.
      names: groups of atomic axes, as for `Plan.mesh`; None: the coarsest that the program allows.
      backend: how it is lowered.

    Raises:
      UnsupportedError: the step holds Python code, or returns objects without source.
      ArgumentError: the program is split inside of a group.
    """
    axes = [axis.name for axis in plan.topology.axes]
    if names is None:
        atomic = AxisNames({axis: (axis,) for axis in axes})
        _Writer(plan, atomic, backend).script()
        groups = coarsest(plan.topology, atomic.seen)
    else:
        groups = {name: tuple(axes[a] for a in group) for name, group in axis_groups(names, plan.topology).items()}
    return _Writer(plan, AxisNames(groups), backend).script()


class _Writer:
    """Writes one script."""

    def __init__(self, plan: Any, names: AxisNames, backend: Any) -> None:
        self._plan, self._names, self._backend = plan, names, backend
        self._graph = plan.require_program()
        self._program = self._graph.program
        self._traced = (self._graph.traced or self._graph).program
        self._mesh = _script_mesh(plan)
        self._literals = Literals(names, self._mesh)
        self._functions = Functions(self._literals)
        arguments = jax.tree.unflatten(self._traced.in_tree, range(len(self._program.inputs)))
        parts = jax.tree.leaves(arguments, is_leaf=lambda x: is_static(x) or isinstance(x, GraphNode))
        if any(isinstance(part, GraphNode) for part in parts):
            raise UnsupportedError(_NNX_MSG)
        self._settings = [part.value for part in parts if is_static(part)]

    def script(self) -> Script:
        step = self._planned_step()
        trees = ResultTrees(self._literals, self._arguments())
        results = trees.source(self._traced.out_tree)
        parts = [
            self._specs("IN_SPECS", self._paths(self._plan.in_paths), self._plan.input_shardings, self._plan.in_avals),
            self._specs("OUT_SPECS", self._paths(self._plan.out_paths), self._plan.output_shardings, ()),
            *self._functions.helpers.values(),
            *self._functions.written.values(),
            step,
            self._jitted(),
            *([self._is_array()] if trees.uses_like or self._settings else []),
            *([_LIKE] if trees.uses_like else []),
            self._entry(results),
            _MAIN,
        ]
        head = [self._docstring(), self._imports(), self._devices()]  # last: they depend on the rest
        text = "\n\n\n".join(["\n\n".join(head), *parts]) + "\n"
        return Script(text=text, arrays=self._literals.arrays, dropped=tuple(self._functions.dropped))

    def _planned_step(self) -> str:
        tensors = [self._program.tensors[t] for t in self._program.inputs]
        shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tensors]
        traced = jax.make_jaxpr(planned_program(self._plan, self._mesh, {}, backend=self._backend))(*shapes)
        arguments = _identifiers(self._paths(self._plan.in_paths))
        lines = self._functions.body(traced.jaxpr, traced.consts, arguments)
        return "\n".join([f"def planned_step({', '.join(arguments)}):", *lines])

    def _paths(self, paths: Sequence[str]) -> list[str]:
        """Readable paths, or those of JAX where two would be one."""
        readable = [readable_path(path, self._plan.argument_names) for path in paths]
        return readable if len(set(readable)) == len(readable) else list(paths)

    def _arguments(self) -> dict[str, Any]:
        """Source of each argument, and the argument with numbers in the place of arrays."""
        source = self._traced.source
        dynamic, keywords = jax.tree.unflatten(self._traced.in_tree, range(len(self._program.inputs)))
        count = source.spelling[0]
        static = source.options.static.positions(range(count))
        places = [i for i in range(count) if i not in static]
        found = {f"args[{i}]": argument for i, argument in zip(places, dynamic, strict=True)}
        return found | {f"kwargs[{name!r}]": argument for name, argument in keywords.items()}

    def _specs(self, name: str, paths: Sequence[str], layouts: Sequence[Any], avals: Sequence[str]) -> str:
        axes, lines = self._plan.topology.axes, [f"{name} = {{"]
        donated = [*self._program.donated] if avals else []
        for i, (path, layout) in enumerate(zip(paths, layouts, strict=True)):
            note = f"  # {avals[i]}{', donated' if donated[i] else ''}" if avals else ""
            lines.append(f"    {path!r}: {self._literals.spec(layout.partition_spec(axes))},{note}")
        return "\n".join([*lines, "}"])

    def _devices(self) -> str:
        sizes = {axis.name: axis.size for axis in self._plan.topology.axes}
        places = {name: i for i, name in enumerate(sizes)}
        groups = self._names.groups or {"device": ()}
        order = [places[axis] for group in groups.values() for axis in group]
        shape = tuple(int(np.prod([sizes[axis] for axis in group], dtype=int)) for group in groups.values())
        devices = f"np.array(jax.devices()[:{self._plan.topology.num_devices}])"
        if order != sorted(order):
            devices = f"{devices}.reshape({tuple(sizes.values())}).transpose({order})"
        lines = [f"MESH = Mesh({devices}.reshape({shape}), {tuple(groups)})"]
        lines += [f"{name} = {source}" for source, name in self._literals.meshes.items()]
        if self._literals.arrays:
            lines.append('ARRAYS = np.load(Path(__file__).with_suffix(".npz"))')
        return "\n".join(lines)

    def _imports(self) -> str:
        lines = ["from pathlib import Path", ""] if self._literals.arrays else []
        lines += ["import jax", "import jax.extend", "import jax.numpy as jnp", "import numpy as np"]
        lines += ["from jax import lax", "from jax.extend.core import primitives"]
        lines += [f"from {module} import {name}" for module, name in sorted(self._literals.imports)]
        lines += ["from jax.sharding import Mesh, NamedSharding", "from jax.sharding import PartitionSpec as P"]
        return "\n".join(lines)

    def _jitted(self) -> str:
        program, offload = self._program, self._plan.offload
        donated = tuple(i for i, is_donated in enumerate(program.donated) if is_donated)
        options = compiler_options(self._plan, self._plan.topology.chip.aot_platform or "gpu")
        compiled = f"\n    compiler_options={options} if jax.default_backend() == 'gpu' else None," if options else ""
        shapes = [
            f"jax.ShapeDtypeStruct({t.shape}, {self._dtype(t.dtype)})"
            for t in (program.tensors[t] for t in program.inputs)
        ]
        return _JITTED.format(
            shapes="\n".join(f"    {shape}," for shape in shapes),
            inputs=_shardings("IN_SPECS", offload.arguments if offload else ()),
            outputs=_shardings("OUT_SPECS", offload.outputs if offload else ()),
            donated=donated,
            options=compiled,
        )

    def _dtype(self, dtype: Any) -> str:
        if _compat.is_key_dtype(dtype):
            return f"jax.random.key(0, impl={jax.random.key_impl(jax.numpy.empty((0,), dtype))!r}).dtype"
        return self._literals.of(np.dtype(dtype))

    def _entry(self, results: str) -> str:
        arguments = self._arguments()
        positional = [source for source in arguments if source.startswith("args")]
        everything = f"([{', '.join(positional)}], {'kwargs' if len(arguments) > len(positional) else '{}'})"
        leaves = f"jax.tree.leaves({everything})"
        if self._settings:
            leaves = f"list(filter(is_array, {leaves}))"
        name = re.sub(r"\W", "_", step_name(self._traced.source.step))
        name = name if name.isidentifier() and name not in _RESERVED else "step"
        return _ENTRY.format(name=name, leaves=leaves, results=results)

    def _is_array(self) -> str:
        """Python numbers are arrays, but where the step took them as settings."""
        are_settings = any(isinstance(value, int | float | complex) for value in self._settings)
        return _IS_ARRAY.format(numbers="" if are_settings else ", int, float, complex")

    def _docstring(self) -> str:
        plan, counts = self._plan, dict[str, int]()
        for collective in plan.prediction.collectives:
            counts[collective.kind] = counts.get(collective.kind, 0) + collective.count
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
        lost = ""
        if self._functions.dropped:
            lost = f"\nLeft out: debug callbacks, {', '.join(dict.fromkeys(self._functions.dropped))}."
        return _DOCSTRING.format(
            step=step_name(self._traced.source.step),
            topology=plan.topology.name,
            summary=plan.summary,
            seconds=format_seconds(plan.time_seconds),
            memory=format_bytes(plan.memory_bytes),
            collectives=told,
            version=jax.__version__,
            lost=lost,
        ).replace("\\", "/")


def _script_mesh(plan: PlanLike) -> Any:
    """The mesh that the program is traced over, with devices where they are present."""
    try:
        return device_mesh(plan.topology)
    except PlanMismatchError:
        return abstract_mesh(plan.topology)


def _shardings(name: str, hosted: Sequence[int]) -> str:
    if not hosted:
        return f"tuple(NamedSharding(MESH, spec) for spec in {name}.values())"
    kind = f"{HOST_KIND!r} if i in {tuple(hosted)} else 'device'"
    return (
        f"tuple(NamedSharding(MESH, spec, memory_kind={kind}) for i, spec in enumerate({name}.values()))"
    )


def _identifiers(paths: Sequence[str]) -> list[str]:
    """Names of parameters after paths, all different."""
    found: dict[str, None] = {}
    for path in paths:
        name = re.sub(r"\W+", "_", path).strip("_") or "x"
        name = name if name[0].isalpha() and not keyword.iskeyword(name) and name not in _RESERVED else f"x_{name}"
        while name in found:
            name += "_"
        found[name] = None
    return list(found)
