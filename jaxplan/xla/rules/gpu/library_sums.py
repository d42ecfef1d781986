"""Sums that a library makes while it multiplies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._effects import Accumulate, Merge
from jaxplan.xla._facts import Facts, is_outer_product
from jaxplan.xla._rule import XLA, CompilerRule

VIEWS = frozenset({"transpose", "reshape", "squeeze", "expand_dims"})
"""Operators that return the buffer of their operand: the compiler chooses its layout so."""

MERGED_BYTES = 32 * 2**20
"""Two dots are not merged when their unshared operands and results exceed this (`xla_gpu_dot_merger_threshold_mb`);
shared operands were seen not to count."""


def library_sums(facts: Facts) -> tuple[Accumulate, ...]:
    """Sums of which one summand is a dot that nothing else reads, D = alpha A B + C.

    XLA makes one library call of them that writes over C, or over a copy where C is read later: the
    dot has no buffer of its own. A transpose of the dot is one of its operands, and a constant factor is alpha.
    Compiled GPU programs were seen to add up input gradients, residual streams, and updates of plain and momentum SGD
    so. Input gradients of convolutions of one pixel are added to others by the library as well, into a buffer of their
    own.
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/gemm_rewriter.cc (``FuseMatrixBiasAdd``) and
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/cudnn_fused_conv_rewriter.cc
    """
    key = library_sums, facts.merged
    if key not in facts.shared:
        facts.shared[key] = tuple(_library_sums(facts))
    return facts.shared[key]


def _library_sums(facts: Facts) -> Iterator[Accumulate]:
    graph, program, values = facts.graph, facts.graph.program, facts.graph.values
    replaced = program.replaced
    for eqn in program.equations:
        summands = set(eqn.operands)
        if eqn.name not in ("add", "add_any") or len(summands) < 2 or any(values.free[t] for t in summands):
            continue
        types = [(program.tensors[t].shape, program.tensors[t].dtype) for t in (*summands, *eqn.results)]
        dots = {t: chain for t in summands if (chain := _dot_behind(graph, t, eqn.index))}
        dots = {t: chain for t, chain in dots.items() if values.producer[chain[-1]] not in facts.merged}
        if dots and len(set(types)) == 1 and not any(_is_bias(graph, t) for t in summands):
            summand = max(dots, key=lambda t: values.producer[dots[t][-1]])
            *views, dot = dots[summand]
            other = (summands - {summand}).pop()
            is_matrix = graph.rules[values.producer[dot]].family == "contraction"
            taken = replaced.get(eqn.results[0])
            replaces = is_matrix and taken is not None and _is_made_of(graph, other, taken, eqn.index)
            yield Accumulate(eqn.index, dot, tuple(views), other, is_matrix, replaces)


def _is_bias(graph: StepGraph, t: int) -> bool:
    """Whether a summand is a smaller array, repeated: a kernel adds it, as one that the sum itself broadcasts."""
    made = graph.values.producer[t]
    if made < 0 or graph.program.equations[made].name != "broadcast_in_dim":
        return False
    tensors = graph.program.tensors
    return tensors[graph.program.equations[made].operands[0]].num_elements < tensors[t].num_elements


def _of_dots(facts: Facts) -> Iterator[Accumulate]:
    return (a for a in library_sums(facts) if a.in_place)


def _of_convolutions(facts: Facts) -> Iterator[Accumulate]:
    return (a for a in library_sums(facts) if not a.in_place)


def _merged_dots(facts: Facts) -> Iterator[Merge]:
    """Dots that the compiler merges into one, which is added to nothing: they sum the same dimensions of one operand.

    https://github.com/openxla/xla/blob/main/xla/hlo/transforms/simplifiers/dot_merger.h
    """
    graph, tensors, sharing = facts.graph, facts.tensors, defaultdict[Hashable, list[Equation]](list)
    for eqn in graph.program.equations:
        if eqn.name == "dot_general" and len(set(eqn.operands)) == 2:
            contracted, batch = eqn.params["dimension_numbers"]
            for side in (0, 1):
                key = side, graph.values.number[eqn.operands[side]], contracted[side], batch[side], eqn.region
                own = tensors[eqn.operands[1 - side]].num_bytes + tensors[eqn.results[0]].num_bytes
                if own <= MERGED_BYTES:
                    sharing[key].append(eqn)
    merged = {eqn.index for dots in sharing.values() if len(dots) > 1 for eqn in dots}
    return map(Merge, sorted(merged))


def _dot_behind(graph: StepGraph, t: int, equation: int) -> tuple[int, ...]:
    """The tensors from a summand back to the dot that a library may add, the dot last; empty where there is none.

    One equation of the same body alone reads each of them.
    """
    program, values, chain, is_scaled = graph.program, graph.values, [], False
    region = program.equations[equation].region
    while True:
        made = values.producer[t]
        if made < 0 or values.consumers[t] != (equation,) or t in program.returned:
            return ()
        eqn = program.equations[made]
        if eqn.region != region:
            return ()
        chain.append(t)
        if _adds_up(graph, eqn):
            is_matrix = graph.rules[made].family == "contraction"
            return tuple(chain) if is_matrix or len(chain) == 1 else ()
        factors = [u for u in eqn.operands if program.tensors[u].kind == "literal" and not program.tensors[u].shape]
        if eqn.name == "mul" and len(factors) == 1 and not is_scaled:
            is_scaled, (t,) = True, set(eqn.operands) - set(factors)
        elif eqn.name in VIEWS:
            t = eqn.operands[0]
        else:
            return ()
        equation = made


def _is_made_of(graph: StepGraph, t: int, source: int, equation: int) -> bool:
    """Whether a tensor is an argument, or computed of it alone by element-wise operators; nothing else reads either."""
    program, values = graph.program, graph.values
    while t != source:
        made = values.producer[t]
        if made < 0 or values.consumers[t] != (equation,) or graph.rules[made].family != "elementwise":
            return False
        operands = [u for u in program.equations[made].operands if not values.free[u] and program.tensors[u].shape]
        if len(operands) != 1:
            return False
        t, equation = operands[0], made
    return values.consumers[source] == (equation,)


def _adds_up(graph: StepGraph, eqn: Equation) -> bool:
    if graph.rules[eqn.index].family == "contraction":
        return not is_outer_product(graph, eqn.index)
    if eqn.name != "conv_general_dilated" or eqn.phase != "backward":
        return False
    kernel = graph.program.tensors[eqn.operands[1]].shape
    steps = (*eqn.params["window_strides"], *eqn.params["lhs_dilation"])
    return all(n == 1 for n in (*steps, *(kernel[d] for d in eqn.params["dimension_numbers"].rhs_spec[2:])))


MERGED_DOTS = CompilerRule(
    name="merged-dots-are-added-to-nothing",
    backends=("gpu",),
    stage="kernels",
    does="Small dots that share an operand are merged into one, which is then part of no sum.",
    source=f"{XLA}hlo/transforms/simplifiers/dot_merger.h",
    made_after=("gpt",),
    test="tests/xla/test_compiled_steps.py::test_compiled_bytes_are_those_with_the_rule",
    find=_merged_dots,
)
GEMM_ADDS_C = CompilerRule(
    name="gemm-accumulates-into-c",
    backends=("gpu",),
    stage="fusion",
    does="A dot that only a sum reads is one library call with it, D = alpha A B + C, written over C.",
    source=f"{XLA}service/gpu/transforms/gemm_rewriter.cc",
    made_after=("dlrm", "gpt"),
    test="tests/xla/test_library_sums.py::test_dots_are_added_up_in_one_buffer",
    find=_of_dots,
    priority=2,
)
CONVOLUTION_ADDS_SIDE_INPUT = CompilerRule(
    name="convolution-adds-side-input",
    backends=("gpu",),
    stage="fusion",
    does="The input gradient of a convolution of one pixel is added to another by the library, into a new buffer.",
    source=f"{XLA}service/gpu/transforms/cudnn_fused_conv_rewriter.cc",
    made_after=("densenet", "inception"),
    test="tests/xla/test_library_sums.py::test_input_gradients_of_one_pixel_are_added_up",
    find=_of_convolutions,
    priority=2,
)
