"""Products of one operand that the compiler is kept from merging.

XLA merges products that share an operand into one, whose result lives until the last of its parts is no longer needed
(https://github.com/openxla/xla/blob/main/xla/hlo/transforms/simplifiers/dot_merger.h). Queries, keys and values were
seen to be merged so: queries and values are written again, scaled or in another order of dimensions, and all three stay
until the backward pass because the keys are read there as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Sequence

from jaxplan.cost import Transfer
from jaxplan.ir import Equation, StepGraph
from jaxplan.mesh import ChipSpec, Sharding
from jaxplan.partition._held_back import array_read, bytes_alive
from jaxplan.xla import MERGED_BYTES, Target, analyse_buffers, is_padded, matrix_dims

LEAST_RISE = 0.01
"""Of the peak without arguments: one large product is a little faster than three small ones."""


def products_kept_apart(
    graph: StepGraph,
    chip: ChipSpec,
    local_bytes: Callable[[int, Sharding | None], int],
    copy_of: Callable[[Equation, int], Transfer | None],
    transfers: Collection[Transfer],
    awaited: Container[int],
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Products of the forward pass, each of which is to read an operand that it shares as if it were another one.

    Args:
      local_bytes, copy_of, transfers: as in `places_of_due_products`.
      awaited: equations that read their operands through a barrier anyway.

    Returns:
      Equation -> for each operand that it shares, the first of those that share it and the operand's position, where
      merged results could raise the peak by more than `LEAST_RISE`. Empty for other compilers than XLA's for GPUs.
    """
    if not chip.is_gpu:
        return {}
    shared = [
        (side, products)
        for side, products in _sharing(graph, copy_of, awaited)
        if _is_merged(graph, side, products, local_bytes, copy_of)
        and any(_waits(graph, eqn.results[0]) for eqn in products)
    ]
    extra = 0
    for _, products in shared:
        parts = [local_bytes(eqn.results[0], None) for eqn in products]
        extra += sum(parts) - min(parts)
    if not extra:
        return {}
    buffers = analyse_buffers(graph, Target.of(chip), in_order=True)
    if extra <= LEAST_RISE * bytes_alive(graph, buffers, local_bytes, transfers).max():
        return {}
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for side, products in shared:
        for eqn in products:
            found[eqn.index] = (*found.get(eqn.index, ()), (products[0].index, side))
    return found


def _sharing(
    graph: StepGraph, copy_of: Callable[[Equation, int], Transfer | None], awaited: Container[int]
) -> list[tuple[int, Sequence[Equation]]]:
    """Products outside of loops and of the backward pass that sum the same dimensions of one array; its position.

    A copy that is made again is another array.
    """
    found: dict[tuple[int, Hashable], list[Equation]] = defaultdict(list)
    for eqn in graph.program.equations:
        is_forward = eqn.phase != "backward" and eqn.region < 0 and eqn.index not in awaited
        if eqn.name != "dot_general" or not is_forward:
            continue
        contracted, batch = eqn.params["dimension_numbers"]
        for side in (0, 1):
            array, copy = array_read(eqn, eqn.operands[side], copy_of), copy_of(eqn, eqn.operands[side])
            execution = copy.execution_at(eqn.index) if copy else 0
            found[side, (array, execution, tuple(contracted[side]), tuple(batch[side]))].append(eqn)
    return [(side, products) for (side, _), products in found.items() if len(products) > 1]


def _is_merged(
    graph: StepGraph,
    side: int,
    products: Sequence[Equation],
    local_bytes: Callable[[int, Sharding | None], int],
    copy_of: Callable[[Equation, int], Transfer | None],
) -> bool:
    """Whether one of the products that share an operand, on one side, reads and writes little enough beside it."""

    def bytes_moved(eqn: Equation) -> int:
        own = eqn.operands[1 - side]
        copy = copy_of(eqn, own)
        return local_bytes(own, copy.target if copy else None) + local_bytes(eqn.results[0], None)

    dtypes = {graph.program.tensors[eqn.results[0]].dtype for eqn in products}
    return len(dtypes) == 1 and min(map(bytes_moved, products)) <= MERGED_BYTES


def _waits(graph: StepGraph, t: int) -> bool:
    """Whether the backward pass reads a product, or what is computed of it element by element."""
    program, stack, seen = graph.program, [t], set()
    while stack:
        for reader in graph.values.consumers[stack.pop()]:
            if program.equations[reader].phase == "backward":
                return True
            if reader not in seen and graph.rules[reader].family in ("elementwise", "shape"):
                seen.add(reader)
                stack.extend(program.equations[reader].results)
    return False


def slices_written_apart(
    graph: StepGraph, chip: ChipSpec, local_shape: Callable[[Equation, int], tuple[int, ...]]
) -> frozenset[int]:
    """Equations that cut what products read as matrices in both orders, and padded, out of something larger.

    XLA pads a matrix in each order by itself. Of queries, keys and values it was seen to save the padded queries and
    values for the backward pass, and to cut the keys there out of the array of all three again, which it kept for that
    beside them. At some sizes it writes the keys by themselves instead, which is less.
    """
    forms: dict[int, set[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(set)
    for eqn in graph.program.equations:
        for side, t in enumerate(eqn.operands if eqn.name == "dot_general" else ()):
            if is_padded(graph, eqn, side, Target.of(chip), local_shape(eqn, t)) and _is_cut(graph, t):
                free, summed = matrix_dims(eqn, side, len(graph.program.tensors[t].shape))
                forms[t].add((summed, free) if side else (free, summed))  # rows and columns
    return frozenset(graph.values.producer[t] for t, matrices in forms.items() if len(matrices) > 1)


def _is_cut(graph: StepGraph, t: int) -> bool:
    """Whether a tensor is a slice, or a view of one."""
    while (made_by := graph.values.producer[t]) >= 0 and graph.rules[made_by].family == "shape":
        eqn = graph.program.equations[made_by]
        if eqn.name in ("slice", "split", "unstack"):
            return True
        t = eqn.operands[0]
    return False
