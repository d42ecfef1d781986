"""Effects of a compiler rule that the shardings of a plan decide on: its transfers, its copies, its heap, its work."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.ir.counts import Border


class CopyWide(NamedTuple):
    """A resharded copy of a 16-bit tensor that the backward pass reads is saved once more in float32."""

    tensor: int


class RoundTable(NamedTuple):
    """A table is rounded as a whole between its first and its last look-up (equations)."""

    tensor: int
    first: int
    last: int


class TravelAs(NamedTuple):
    """A tensor travels as the narrower one that it was cast from."""

    tensor: int
    source: int


class TravelRounded(NamedTuple):
    """A tensor travels in elements of so many bytes to readers (equations) that round it."""

    tensor: int
    readers: frozenset[int]
    itemsize: int


class ShareSteps(NamedTuple):
    """Reshardings of one value that begin alike are one collective as far as they do."""


class MoveTiles(NamedTuple):
    """A reduce-scatter of small pieces moves whole tiles."""


class Combine(NamedTuple):
    """Small collectives that are ready together become one."""


class ReduceAtOnce(NamedTuple):
    """Partial sums of more than so many bytes on a device are reduced where they are made."""

    num_bytes: int


class AwaitBarriers(NamedTuple):
    """Weight gradients of the backward pass are made by the barrier after the next (equations, ascending)."""

    barriers: tuple[int, ...]


class AwaitNextGradient(NamedTuple):
    """A reduce-scatter of a gradient is awaited after the next gradient is made."""


class StartEarly(NamedTuple):
    """A gather starts as soon as its operand is there: with the trip of a loop, or with the step."""


class ClearTogether(NamedTuple):
    """Tensors that are cleared at once, where the first of those that are split alike is made."""

    tensors: tuple[int, ...]


class TakeTurns(NamedTuple):
    """The gradient of a large table, where it is reduced, is cleared when it is made, not with others."""

    tensor: int


class ReduceInPlace(NamedTuple):
    """An all-reduce of a tensor writes over its operand."""

    tensor: int


class ScatterInNextTrip(NamedTuple):
    """A reduce-scatter of a tensor that a loop makes (first and last equation of its body) runs in the next trip."""

    tensor: int
    first: int
    last: int


class ShortenSources(NamedTuple):
    """Sources of a fused value that is resharded live no longer than that."""


class ExtendSources(NamedTuple):
    """Where a transposed operand is not written, its sources live to its last use."""


class GatherInto(NamedTuple):
    """An update is gathered into the donated argument that it replaces."""

    tensor: int


class KeepUpdatedParts(NamedTuple):
    """A shard that is updated and then gathered lives until the end of the step."""


class GatherInPieces(NamedTuple):
    """What is gathered along an inner dimension arrives in pieces, and is transposed."""


class ExtendImages(NamedTuple):
    """Convolutions read blocks and their neighbours' edges as one array."""


class ExtendPoolings(NamedTuple):
    """Poolings read blocks and their neighbours' edges as one array, written as soon as it can be."""


class WriteForEdges(NamedTuple):
    """An image that convolutions would compute is written where its edges go to neighbours."""

    tensor: int


class TransposeUpdates(NamedTuple):
    """A scatter reads a transposed copy of its updates, where that is larger than so many bytes."""

    equation: int
    num_bytes: int


class HoldPieces(NamedTuple):
    """A piece that its reader would compute is written while it is gathered."""


class CopyLargestUpdate(NamedTuple):
    """The largest parameter that is gathered after its update is copied at the beginning."""


class SumLoss(NamedTuple):
    """Predictions live until their loss is summed: with their gradient, or later where that of a bias is a split sum.

    Attributes:
      predictions: tensors that the loss is fused with.
      readers: the equations that read them for it.
      gradient: that of the predictions, or of one of them.
      after_bias: the dot that reads the gradient, if the gradient of a bias may be summed with it; None otherwise.
      most_rows: on a device, of the gradient, with which the sum of the bias is not split.
    """

    predictions: tuple[int, ...]
    readers: frozenset[int]
    gradient: int
    after_bias: int | None
    most_rows: int


class Scratch(NamedTuple):
    """An equation has scratch memory while it runs."""

    equation: int
    num_bytes: int


class OnChip(NamedTuple):
    """A tensor lies in the memory beside the cores, as far as that goes."""

    tensor: int


class ShortLivedOnChip(NamedTuple):
    """Short-lived buffers fill a share of the memory beside the cores."""

    share: float


class Gaps(NamedTuple):
    """The heap has gaps between its buffers (`jaxplan.xla.COUNTED_GAPS`)."""


class Pack(NamedTuple):
    """Buffers are packed into one heap, which has gaps between them (`jaxplan.xla._heap`)."""


class MultiplyBorder(NamedTuple):
    """Zeros that are written around the image of a convolution are multiplied."""

    equation: int
    border: Border


class Repeat(NamedTuple):
    """An equation does the work of its program so many times."""

    equation: int
    times: int


PlanEffect = (
    CopyWide
    | RoundTable
    | TravelAs
    | TravelRounded
    | ShareSteps
    | MoveTiles
    | Combine
    | ReduceAtOnce
    | AwaitBarriers
    | AwaitNextGradient
    | StartEarly
    | ClearTogether
    | TakeTurns
    | ReduceInPlace
    | ScatterInNextTrip
    | ShortenSources
    | ExtendSources
    | GatherInto
    | KeepUpdatedParts
    | GatherInPieces
    | ExtendImages
    | ExtendPoolings
    | WriteForEdges
    | TransposeUpdates
    | HoldPieces
    | CopyLargestUpdate
    | SumLoss
    | Scratch
    | OnChip
    | ShortLivedOnChip
    | Gaps
    | Pack
    | MultiplyBorder
    | Repeat
)
