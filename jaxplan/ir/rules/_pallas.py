"""Pallas kernels: their block specifications say which blocks of every operand a grid point reads and writes.

At the level of blocks a kernel is an opaque function of blocks, described in the description language; its index maps
are evaluated on index variables, and where one is affine in them a grid dimension may be split.
(https://docs.jax.dev/en/latest/pallas/grid_blockspec.html)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxplan.core._compat import Literal, open_jaxpr
from jaxplan.ir._registry import Avals, Params, register_local_params, register_rule
from jaxplan.ir._rule import Factor, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import leading_dims_rule
from jaxplan.ir.tdl import Opaque, analyse

_PROGRAM_POSITION = ("program_id", "num_programs")
_PARALLEL = "parallel"


@register_rule("pallas_call")
def pallas_call_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A factor per grid dimension that indexes blocks of every result alone, where the kernel does not ask for its
    own position in that dimension and keeps nothing from one grid point to the next.

    A dimension of an array is blocks, major, times elements of a block, which are whole.
    """
    grid = _Grid(params)
    if not grid.is_static:
        return leading_dims_rule(in_avals, out_avals, num_leading=0, family="opaque")
    ins, outs = ([aval.shape for aval in avals] for avals in (in_avals, out_avals))
    blocks = [_num_blocks(shape, sizes) for shape, sizes in zip((*ins, *outs), grid.block_sizes)]
    in_blocks, out_blocks = blocks[: len(ins)], blocks[len(ins) :]
    rule = analyse(grid.describe(out_blocks), in_blocks, out_blocks, manual=True).rule
    return _with_block_elements(rule, ins, outs)


@register_local_params("pallas_call")
def pallas_call_params(
    params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]
) -> dict[str, Any]:
    """On pieces the grid has fewer points and the arrays are smaller; the blocks, and so the kernel, are the same."""
    mapping, grid = params["grid_mapping"], _Grid(params)
    sizes = list(mapping.grid)
    for index, shape, block in zip(grid.result_indices, out_shapes, grid.block_sizes[len(in_shapes) :]):
        for axis, dimension in index.items():
            sizes[dimension] = shape[axis] // block[axis]
    block_mappings = tuple(
        block.replace(array_aval=block.array_aval.update(shape=tuple(shape)))
        for block, shape in zip(mapping.block_mappings, (*in_shapes, *out_shapes))
    )
    out_avals = tuple(aval.update(shape=tuple(s)) for aval, s in zip(params["out_avals"], out_shapes))
    return {
        **params,
        "grid_mapping": mapping.replace(grid=tuple(sizes), block_mappings=block_mappings),
        "out_avals": out_avals,
    }


class _Grid:
    """The grid of a kernel.

    Attributes:
      is_static: whether sizes and index maps depend on no data.
      block_sizes: per operand, then result, elements of a block in each dimension; 0 where blocks overlap.
      result_indices: per result, dimension -> the grid dimension that alone is the index of its blocks.
    """

    def __init__(self, params: Params) -> None:
        self._params, self._mapping = params, params["grid_mapping"]
        self.is_static = not self._mapping.num_dynamic_grid_bounds and not self._mapping.num_index_operands
        self.block_sizes = list(map(block_sizes, self._mapping.block_mappings))
        num_results = len(params["out_avals"])
        self._in_maps = self._mapping.block_mappings[:-num_results]
        self._in_shapes = [block.array_aval.shape for block in self._in_maps]
        out_maps = self._mapping.block_mappings[-num_results:]
        self.result_indices = [_plain_dimensions(block) for block in out_maps] if self.is_static else []

    def describe(self, out_blocks: Sequence[Shape]) -> Any:
        """The kernel at the level of blocks, in the description language."""
        splittable = set(self._splittable(out_blocks))

        def description(*operands: Any) -> Any:
            return tuple(
                lambda *g, axes=axes: self._kernel(operands, g, axes, splittable)
                for axes in self.result_indices
            )

        return description

    def _kernel(self, operands: Any, indices: Any, axes: Mapping[int, int], splittable: set[int]) -> Any:
        position = {dimension: indices[axis] for axis, dimension in axes.items() if dimension in splittable}
        unknown, reads = Opaque("the kernel"), []
        point = [position.get(g, unknown(0)) for g in range(len(self._mapping.grid))]
        for operand, block, shape in zip(operands, self._in_maps, self._in_shapes):
            entries = _evaluate(block.index_map_jaxpr, point)
            sizes = map(_block_size, block.block_shape)
            is_even = [b and n % b == 0 for b, n in zip(sizes, shape)]
            reads.append(operand[tuple(e if even else unknown(e) for e, even in zip(entries, is_even))])
        rest = [index for axis, index in enumerate(indices) if axes.get(axis) not in splittable]
        return unknown(*reads)[tuple(rest)] if rest else unknown(*reads)

    def _splittable(self, out_blocks: Sequence[Shape]) -> Iterator[int]:
        asked = set(_asked_positions(self._params["jaxpr"]))
        semantics = getattr(self._params.get("compiler_params"), "dimension_semantics", None) or ()
        for g, size in enumerate(self._mapping.grid):
            is_parallel = g < len(semantics) and str(semantics[g]).lower().endswith(_PARALLEL)
            places = [
                axes
                for axes, shape in zip(self.result_indices, out_blocks)
                if any(d == g and shape[axis] == size for axis, d in axes.items())
            ]
            is_written_once = len(places) == len(out_blocks)
            if is_written_once and g not in asked and (is_parallel or not self._mapping.scratch_avals):
                yield g


def block_sizes(block: Any) -> tuple[int, ...]:
    """Elements of a block in each dimension of its array; 0 for windows that are indexed by element."""
    return tuple(map(_block_size, block.block_shape))


def _block_size(entry: Any) -> int:
    """Elements of a block; 1 for a squeezed dimension, 0 for windows that are indexed by element."""
    if entry is None or type(entry).__name__ == "Squeezed":
        return 1
    if isinstance(entry, int):
        return entry
    return int(entry.block_size) if type(entry).__name__ == "Blocked" else 0


def _num_blocks(shape: Shape, block: Sequence[int]) -> Shape:
    """Blocks per dimension; a dimension that blocks do not divide is one."""
    return tuple(size // b if b and size % b == 0 else 1 for size, b in zip(shape, block))


def _plain_dimensions(block: Any) -> dict[int, int]:
    """Array dimension -> grid dimension, where a variable of the index map is the index."""
    jaxpr = open_jaxpr(block.index_map_jaxpr)[0]
    positions = {var: g for g, var in enumerate(jaxpr.invars)}
    found = {
        axis: positions[var]
        for axis, var in enumerate(jaxpr.outvars)
        if not isinstance(var, Literal) and var in positions
    }
    return {axis: g for axis, g in found.items() if list(found.values()).count(g) == 1}


def _evaluate(index_map: Any, point: Sequence[Any]) -> list[Any]:
    """An index map on index variables; a part that is not affine becomes opaque, and its variables are not split."""
    jaxpr, consts = open_jaxpr(index_map)
    env: dict[Any, Any] = dict(zip(jaxpr.invars, point))
    env.update(zip(jaxpr.constvars, consts))
    read = lambda atom: int(atom.val) if isinstance(atom, Literal) else env[atom]  # noqa: E731
    for eqn in jaxpr.eqns:
        values = list(map(read, eqn.invars))
        affine = _AFFINE.get(eqn.primitive.name)
        result = affine(*values) if affine else Opaque("an index map")(*values)
        env.update((var, result) for var in eqn.outvars)
    return list(map(read, jaxpr.outvars))


_AFFINE: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y if isinstance(x, int) or isinstance(y, int) else Opaque("a product")(x, y),
    "neg": lambda x: -x,
    "convert_element_type": lambda x: x,
}


def _asked_positions(kernel: Any) -> Iterator[int]:
    """Grid dimensions of which the kernel reads its own position or the size."""
    for eqn in open_jaxpr(kernel)[0].eqns:
        if eqn.primitive.name in _PROGRAM_POSITION:
            yield eqn.params["axis"]
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _asked_positions(inner)


def _with_block_elements(rule: OperatorRule, ins: Sequence[Shape], outs: Sequence[Shape]) -> OperatorRule:
    """The rule of arrays from the rule of blocks: every dimension gets the rest of its size as a whole factor."""
    factors = list(rule.factors)

    def dims(tensor: TensorFactors, shape: Shape) -> TensorFactors:
        return tuple(indices + _rest(factors, indices, size) for indices, size in zip(tensor, shape))

    operands = tuple(map(dims, rule.operands, ins))
    results = tuple(map(dims, rule.results, outs))
    return OperatorRule(
        factors=tuple(factors), operands=operands, results=results, family="opaque", manual=True
    )


def _rest(factors: list[Factor], indices: tuple[int, ...], size: int) -> tuple[int, ...]:
    for index in indices:
        size //= factors[index].size
    if size == 1:
        return ()
    factors.append(Factor(size=size, kind="whole", name=f"e{len(factors)}"))
    return (len(factors) - 1,)
