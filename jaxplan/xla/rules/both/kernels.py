"""Kernels, the equations fused into them, and the buffers that they read and write."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.xla._effects import Absorb, Inline, Write
from jaxplan.xla._facts import Facts, is_outer_product
from jaxplan.xla._rule import ALL, XLA, CompilerRule

_FUSION = f"{XLA}service/instruction_fusion.cc"


def _outer_products(facts: Facts) -> Iterator[Inline]:
    return (Inline(e.index) for e in facts.equations if is_outer_product(facts.graph, e.index))


OUTER_PRODUCTS = CompilerRule(
    name="outer-products-are-multiplications",
    backends=ALL,
    stage="kernels",
    does="A dot that sums nothing becomes a multiplication, which is fused.",
    source=f"{XLA}hlo/transforms/simplifiers/algebraic_simplifier.cc",
    made_after=("dlrm",),
    test="tests/xla/test_kernels.py::test_a_dot_that_sums_nothing_is_fused",
    find=_outer_products,
)


def _operands_of_reductions(facts: Facts) -> Iterator[Absorb]:
    reductions = (e for e in facts.equations if facts.family(e.index) == "reduction")
    return (Absorb(e.index, t) for e in reductions for t in e.operands)


REDUCTIONS_READ_FUSED = CompilerRule(
    name="reductions-compute-their-operands",
    backends=ALL,
    stage="kernels",
    does="A reduction computes the element-wise chain in front of it inside of its kernel.",
    source=_FUSION,
    made_after=(),
    test="tests/cost/test_prediction.py::test_what_is_saved_for_the_backward_pass",
    find=_operands_of_reductions,
)


def _touched_by_kernels(facts: Facts) -> Iterator[Write]:
    """A look-up that its readers compute reads its table from memory all the same."""
    for eqn in facts.equations:
        if eqn.name == "optimization_barrier":
            yield Write(eqn.operands[0])
        elif facts.kernels[eqn.index] and not eqn.name.startswith("region_"):
            absorbed = facts.absorbed.get(eqn.index, frozenset())
            yield from (Write(t) for t in (*eqn.operands, *eqn.results) if t not in absorbed)
        elif facts.family(eqn.index) == "gather":
            yield Write(eqn.operands[0])


KERNELS = CompilerRule(
    name="kernels-read-and-write-memory",
    backends=ALL,
    stage="fusion",
    does="Operands that a kernel does not compute inside of it are buffers, and so are its results.",
    source=_FUSION,
    made_after=(),
    test="tests/cost/test_prediction.py::test_peak_of_a_chain_of_dots",
    find=_touched_by_kernels,
)
