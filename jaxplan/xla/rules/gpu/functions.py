"""Functions that GPU programs save rather than compute twice, and the width in which they do."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import Equation
from jaxplan.xla._effects import Hold, KeepResults, Recompute
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._plan_effects import CopyWide
from jaxplan.xla._rule import XLA, CompilerRule, Observed, zoo
from jaxplan.xla.rules.both.gated import TRANSCENDENTAL

_ONE_BY_ONE = Observed(
    evidence="perceptrons with each function between their dots, compiled for H100 and A100",
    command="python -m pytest -m gpu_aot tests/cost/test_functions.py",
)

NOT_RECOMPUTED = frozenset({"tanh", "erfc", "erf_inv", "pow", "digamma", "lgamma"})
"""``tanh`` and ``erfc`` stand in GELUs; ``exp`` of attention and loss was seen recomputed, and ``erf``, ``tan`` and
``cbrt`` there."""
_WIDE_BYTES = 4
NARROW_ALONE = frozenset({"erf_inv"})
"""Those that are computed twice where they are float32."""
NOT_RECOMPUTED_IN_16_BITS = frozenset({"sin", "cos", "atan", "atan2", "expm1"})


def _saved(facts: Facts) -> Iterator[KeepResults]:
    computed = (e for e in facts.equations if e.name in NOT_RECOMPUTED)
    return (KeepResults(e.index) for e in computed if e.name not in NARROW_ALONE or _is_narrow(facts, e))


def _saved_in_16_bits(facts: Facts) -> Iterator[KeepResults]:
    computed = (e for e in facts.equations if e.name in NOT_RECOMPUTED_IN_16_BITS)
    return (KeepResults(e.index) for e in computed if _is_narrow(facts, e) or _is_wave(facts, e))


def _is_wave(facts: Facts, eqn: Equation) -> bool:
    """Whether an equation is a sine or cosine that a fusion of the forward pass reads, not the derivative of one."""
    return eqn.name in ("sin", "cos") and any(not backward for backward, _ in _fusions(facts, eqn.results[0]))


def _is_narrow(facts: Facts, eqn: Equation) -> bool:
    """Whether a result is of 16 bits or less."""
    return facts.tensors[eqn.results[0]].itemsize < _WIDE_BYTES


def _tanh_of_one_fusion(facts: Facts) -> Iterator[Recompute]:
    """Those of float32 that take plain arithmetic of a buffer and that one fusion of each pass reads, element by
    element: in a GELU, not in a mish, nor where scores of attention are capped."""
    for eqn in facts.equations:
        if eqn.name == "tanh" and eqn.phase == "forward" and not _is_narrow(facts, eqn):
            size = facts.tensors[eqn.results[0]].num_elements
            fusions = _fusions(facts, eqn.results[0])
            is_one = len(fusions) == len({is_backward for is_backward, _ in fusions}) and all(
                facts.tensors[u].num_elements == size for _, u in fusions
            )
            if is_one and not any(source.name in TRANSCENDENTAL for source in _fused_sources(facts, eqn)):
                yield Recompute(eqn.index)


def _fused_sources(facts: Facts, eqn: Equation) -> Iterator[Equation]:
    """The equations that a fusion computes the operands of one with."""

    def sources(u: int) -> Iterator[int]:
        made_by = facts.maker(u)
        if made_by is not None and not facts.written[u]:
            yield from made_by.operands

    makers = (facts.maker(u) for u in walk(eqn.operands, sources) if not facts.written[u])
    return (made_by for made_by in makers if made_by is not None)


def _fusions(facts: Facts, t: int) -> set[tuple[bool, int]]:
    """The buffers that fusions compute of a value, and whether each belongs to the backward pass."""
    fusions = set[tuple[bool, int]]()

    def fused(u: int) -> Iterator[int]:
        for eqn in facts.readers(u):
            for r in eqn.results:
                if facts.written[r]:
                    fusions.add((eqn.phase == "backward", r))
                else:
                    yield r

    for _ in walk([t], fused):
        pass
    return fusions


def _makers_of_arguments(facts: Facts) -> Iterator[Equation]:
    """Equations with a result that ``erfc`` reads."""
    return (e for e in facts.equations if any(r.name == "erfc" for t in e.results for r in facts.readers(t)))


def _arguments_of_erfc(facts: Facts) -> Iterator[KeepResults]:
    return (KeepResults(e.index) for e in _makers_of_arguments(facts) if _is_narrow(facts, e))


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
    does="`tanh`, `erfc`, `pow`, `digamma` and `lgamma` are saved for the backward pass, and `erf_inv` of 16 bits.",
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
    does="`atan`, `atan2`, `expm1`, `sin`, `cos` of 16 bits are saved, and wide `sin` and `cos` of the forward pass.",
    source=_ONE_BY_ONE,
    made_after=(),
    test="tests/cost/test_functions.py::test_what_gpus_save_of_a_function",
    find=_saved_in_16_bits,
)
WIDE_TANH = CompilerRule(
    name="float32-tanh-of-one-fusion-is-recomputed",
    backends=("gpu",),
    arithmetic="bf16",
    stage="residuals",
    does="A `tanh` of float32 in plain arithmetic is computed twice where one fusion of each pass reads it.",
    source=_ONE_BY_ONE,
    made_after=(),
    test="tests/cost/test_functions.py::test_what_gpus_save_of_a_gelu",
    find=_tanh_of_one_fusion,
    priority=1,
)
ERFC_ARGUMENTS = CompilerRule(
    name="arguments-of-erfc-are-saved",
    backends=("gpu",),
    stage="residuals",
    does="`erfc` becomes many operators that read its argument, so an argument of 16 bits is saved.",
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
