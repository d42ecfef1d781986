"""Floating-point operations of a compiled module, counted from its contractions and convolutions."""

import json
import re
from math import prod

from jaxplan.audit._hlo_instruction import ArrayType, Instruction, operand_types
from jaxplan.audit._hlo_text import Module, parse_module

_DIMENSIONS = re.compile(r"\b(lhs_contracting_dims)=\{([\d,]*)\}")
_DIM_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CONFIG_CONTRACTING = re.compile(r'"lhs_contracting_dimensions":\s*(\[[^\]]*\])')
_BATCH_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")

_FLOPS_PER_FMA = 2  # a multiplication and an addition
_LAYOUT_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint"})
_TPU_MARKS = frozenset(
    {"AsyncCollectiveStart", "AsyncCollectiveDone", "AssumeGatherIndicesInBound", "ConcatBitcast"}
)
_NO_ARITHMETIC = _LAYOUT_CALLS | _TPU_MARKS


def flops(hlo_text: str) -> int:
    """Operations of one step on one device: 2*m*n*k for each contraction, loops times their trip count.

    Counts `dot`, `convolution`, cuBLAS and cuDNN convolution calls. Element-wise work is left out.
    """
    return sum(flops_by_dtype(parse_module(hlo_text)).values())


def flops_by_dtype(module: Module) -> dict[str, int]:
    """`flops`, split by the element type of the left operand in HLO's words (`bf16`, `f32`)."""
    totals: dict[str, int] = {}
    for computation, instruction, runs in module.executed():
        operands = operand_types(computation, instruction)
        if count := instruction_flops(instruction, operands):
            dtype = operands[0].dtype
            totals[dtype] = totals.get(dtype, 0) + runs * count
    return totals


def uncounted_calls(module: Module) -> tuple[str, ...]:
    """Targets of custom calls of unknown work, in order of appearance."""
    targets: dict[str, None] = {}
    for computation, instruction, _ in module.executed():
        if instruction.opcode == "custom-call":
            match = _TARGET.search(instruction.attributes)
            target = match[1] if match else "?"
            if target not in _NO_ARITHMETIC and not instruction_flops(
                instruction, operand_types(computation, instruction)
            ):
                targets[target] = None
    return tuple(targets)


def instruction_flops(instruction: Instruction, operands: tuple[ArrayType, ...]) -> int:
    """Operations of one contraction, convolution or library call that is one; 0 of everything else."""
    if instruction.opcode == "dot":
        match = _DIMENSIONS.search(instruction.attributes)
        contracted = [int(d) for d in match[2].split(",") if d] if match else []
        return _contraction_flops(instruction.types[0], operands[0], contracted)
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, operands[0], operands[1], instruction.types[0])
    if instruction.opcode == "custom-call":
        return _library_flops(instruction, operands)
    return 0


def _library_flops(instruction: Instruction, operands: tuple[ArrayType, ...]) -> int:
    """cuBLAS and cuDNN calls; of a tuple result the first array counts, the rest is scratch."""
    match = _TARGET.search(instruction.attributes)
    target = match[1] if match else ""
    result = instruction.types[0] if instruction.types else None
    if result is None:
        return 0
    if target.startswith("__cublas$"):
        contracting = _CONFIG_CONTRACTING.search(instruction.attributes)
        if contracting is None:
            return 0
        return _contraction_flops(result, operands[0], [int(d) for d in json.loads(contracting[1])])
    if target.startswith("__cudnn$convBackwardInput"):
        return _convolution_flops(instruction, result, operands[1], operands[0])
    if target.startswith("__cudnn$convBackwardFilter"):
        return _convolution_flops(instruction, operands[0], result, operands[1])
    if target.startswith("__cudnn$conv"):
        return _convolution_flops(instruction, operands[0], operands[1], result)
    return 0


def _contraction_flops(result: ArrayType, lhs: ArrayType, contracted: list[int]) -> int:
    return _FLOPS_PER_FMA * result.num_elements * prod(lhs.shape[d] for d in contracted)


def _convolution_flops(
    instruction: Instruction, inputs: ArrayType, kernel: ArrayType, outputs: ArrayType
) -> int:
    """Multiply-adds over positions that exist, padding and dilation holes left out.

    As in XLA's `HloCostAnalysis::GetConvolutionFlops`: input features per group x output features x batch x
    valid (output position, kernel position) pairs of each spatial dimension.
    """
    labels = _DIM_LABELS.search(instruction.attributes)
    if labels is None:
        return 0
    input_labels, kernel_labels, output_labels = labels[1], labels[2], labels[3]
    groups = _BATCH_GROUPS.search(instruction.attributes)
    count = kernel.shape[kernel_labels.index("i")] * outputs.shape[output_labels.index("f")]
    count *= inputs.shape[input_labels.index("b")] // (int(groups[1]) if groups else 1)
    spatial = sorted(label for label in input_labels if label.isdigit())
    windows = _windows(instruction.attributes, len(spatial))
    for label, window in zip(spatial, windows, strict=True):
        count *= _valid_positions(
            inputs.shape[input_labels.index(label)],
            kernel.shape[kernel_labels.index(label)],
            outputs.shape[output_labels.index(label)],
            window,
        )
    return _FLOPS_PER_FMA * count


def _windows(attributes: str, rank: int) -> list[tuple[int, int, int, int]]:
    """`(stride, padding before, input dilation, kernel dilation)` of each spatial dimension."""
    match = _WINDOW.search(attributes)
    fields = dict(item.split("=", 1) for item in match[1].split()) if match else {}

    def values(key: str, default: str) -> list[str]:
        return fields[key].split("x") if key in fields else [default] * rank

    padding = [item.split("_")[0] for item in values("pad", "0_0")]
    columns = (values("stride", "1"), padding, values("lhs_dilate", "1"), values("rhs_dilate", "1"))
    return [(int(s), int(p), int(ld), int(rd)) for s, p, ld, rd in zip(*columns, strict=True)]


def _valid_positions(size: int, kernel: int, output: int, window: tuple[int, int, int, int]) -> int:
    stride, padding, input_dilation, kernel_dilation = window
    count = 0
    for offset in range(kernel):
        for position in range(output):
            place = position * stride + offset * kernel_dilation - padding
            count += place % input_dilation == 0 and 0 <= place // input_dilation < size
    return count
