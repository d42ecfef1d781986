"""Functions that GPU programs save rather than compute twice, and the width in which they do."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import Equation
from jaxplan.xla._effects import Hold, KeepResults, Recompute
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._plan_effects import CopyWide
from jaxplan.xla._rule import XLA, CompilerRule, Observed, zoo

_ONE_BY_ONE = Observed(
    evidence="perceptrons with each function between their dots, compiled for H100 and A100",
    command="python -m pytest -m gpu_aot tests/cost/test_functions.py",
)

NOT_RECOMPUTED = frozenset({"tanh", "erfc", "erf_inv", "pow", "digamma", "lgamma"})
"""``tanh`` and ``erfc`` stand in GELUs; ``exp`` of attention and loss was seen recomputed, and ``erf``, ``tan`` and
``cbrt`` there."""
_WIDE_BYTES = 4
NOT_RECOMPUTED_IN_16_BITS = frozenset({"sin", "cos", "atan", "atan2", "expm1"})


def _saved(facts: Facts) -> Iterator[KeepResults]:
    return (KeepResults(e.index) for e in facts.equations if e.name in NOT_RECOMPUTED)


def _saved_in_16_bits(facts: Facts) -> Iterator[KeepResults]:
    return (KeepResults(e.index) for e in facts.equations if e.name in NOT_RECOMPUTED_IN_16_BITS)


def _makers_of_arguments(facts: Facts) -> Iterator[Equation]:
    """Equations with a result that ``erfc`` reads."""
    return (e for e in facts.equations if any(r.name == "erfc" for t in e.results for r in facts.readers(t)))


def _arguments_of_erfc(facts: Facts) -> Iterator[KeepResults]:
    return (KeepResults(e.index) for e in _makers_of_arguments(facts))


def _of_convolutions(facts: Facts) -> Iterator[Recompute]:
    return (Recompute(e.index) for e in _makers_of_arguments(facts) if _is_of_convolution(facts, e.results[0]))


def _is_of_convolution(facts: Facts, t: int) -> bool:
    """Whether a value is an element-wise function of a convolution's result."""
    size = facts.tensors[t].num_elements

    def sources(u: int) -> Iterator[int]:
        made_by = facts.maker(u)
        if made_by and facts.family(made_by.index) == "elementwise":
            yield from (v for v in made_by.operands if facts.tensors[v].num_elements == size)

    makers = (facts.maker(u) for u in walk([t], sources))
    return any(e is not None and facts.family(e.index) == "convolution" for e in makers)


def _wide(facts: Facts) -> Iterator[Hold]:
    results = (e.results[0] for e in facts.equations if e.name in NOT_RECOMPUTED)
    return (Hold(t, _WIDE_BYTES) for t in results if facts.tensors[t].itemsize < _WIDE_BYTES)


def _wide_copies(facts: Facts) -> Iterator[CopyWide]:
    """16-bit tensors that the fusions of both passes cast to float32.

    Nothing behind the last dot of the forward pass: a loss and its gradient are one fusion.
    """
    forward = (e.index for e in facts.equations if e.phase == "forward" and facts.is_dot(e.index))
    last_dot = max(forward, default=-1)
    for eqn in facts.equations[:last_dot + 1]:
        if eqn.name != "convert_element_type" or eqn.phase == "backward" or facts.written[eqn.results[0]]:
            continue
        narrow, wide = facts.tensors[eqn.operands[0]], facts.tensors[eqn.results[0]]
        is_wider = narrow.itemsize < _WIDE_BYTES == wide.itemsize and wide.dtype.kind == "f"
        if is_wider:
            yield CopyWide(narrow.index)


SAVED_FUNCTIONS = CompilerRule(
    name="costly-functions-are-saved",
    backends=("gpu", "cpu"),
    stage="residuals",
    does="`tanh`, `erfc`, `erf_inv`, `pow`, `digamma` and `lgamma` are saved for the backward pass.",
    source=_ONE_BY_ONE,
    made_after=("gpt", "bert"),
    test="tests/cost/test_functions.py::test_what_gpus_save_of_a_function",
    find=_saved,
)
SAVED_FUNCTIONS_OF_16_BITS = CompilerRule(
    name="trigonometry-of-16-bits-is-saved",
    backends=("gpu",),
    arithmetic="bf16",
    stage="residuals",
    does="`sin`, `cos`, `atan`, `atan2` and `expm1` are saved where element-wise arithmetic is of 16 bits.",
    source=_ONE_BY_ONE,
    made_after=(),
    test="tests/cost/test_functions.py::test_what_gpus_save_of_a_function",
    find=_saved_in_16_bits,
)
ERFC_ARGUMENTS = CompilerRule(
    name="arguments-of-erfc-are-saved",
    backends=("gpu",),
    stage="residuals",
    does="`erfc` becomes many operators that read its argument, so the argument is saved.",
    source=_ONE_BY_ONE,
    made_after=("wav2vec",),
    test="tests/cost/test_functions.py::test_gpus_save_what_erfc_reads",
    find=_arguments_of_erfc,
)
ERFC_OF_CONVOLUTIONS = CompilerRule(
    name="erfc-of-convolutions-recomputes-its-argument",
    backends=("gpu",),
    arithmetic="bf16",
    stage="residuals",
    does="Where `erfc` is computed of the result of a convolution its argument is recomputed of that.",
    source=_ONE_BY_ONE,
    made_after=("wav2vec",),
    test="tests/cost/test_functions.py::test_gpus_do_not_save_what_erfc_reads_of_a_convolution",
    find=_of_convolutions,
    priority=1,
)
WIDE_FUNCTIONS = CompilerRule(
    name="saved-functions-are-float32",
    backends=("gpu",),
    arithmetic="f32",
    stage="storage",
    does="A 16-bit result of a saved function is saved as the float32 in which it was computed.",
    source=f"{XLA}hlo/transforms/simplifiers/float_normalization.cc",
    made_after=("gpt",),
    test="tests/cost/test_functions.py::test_what_gpus_save_where_arithmetic_is_wide",
    find=_wide,
)
WIDE_COPIES = CompilerRule(
    name="resharded-copies-are-saved-in-float32",
    backends=("gpu",),
    stage="layouts",
    does="A resharded 16-bit value that both passes cast to float32 is saved in float32 too, if a dot follows.",
    source=Observed(
        evidence="ResNet-50 with activations moved between layouts, BERT with logits that are a sum over all devices",
        command=zoo("h100:8", "resnet50", "bert"),
    ),
    made_after=("resnet50", "bert"),
    test="tests/partition/test_plan_compiles.py::test_the_compiled_program_is_the_planned_one",
    find=_wide_copies,
)
