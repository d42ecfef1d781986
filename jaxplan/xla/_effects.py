"""Effects of a compiler rule on a step: one small value for each decision. A pass applies all those of its stage."""

from __future__ import annotations

from typing import NamedTuple

from jaxplan.xla._plan_effects import PlanEffect
from jaxplan.xla._storage import ChannelGroups, Exchange
from jaxplan.xla._storage import Order as Layout


class Inline(NamedTuple):
    """An equation has no kernel of its own: its readers compute it."""

    equation: int


class Kernel(NamedTuple):
    """An equation has a kernel of its own though its family is fused elsewhere."""

    equation: int


class Absorb(NamedTuple):
    """A kernel computes an operand inside of it, so its reading alone makes no buffer of the operand."""

    equation: int
    tensor: int


class Merge(NamedTuple):
    """A dot is merged with others that share an operand, and added to nothing."""

    equation: int


class Rectify(NamedTuple):
    """Dots compute a rectifier as they read it, of a sum that is kept."""

    equation: int


class Write(NamedTuple):
    """A tensor is a buffer: everywhere, or where the local shape of a configuration says so.

    Attributes:
      blocks: only where a device holds more than one element of these dimensions.
      transposes: only where a dot has other dimensions innermost than these (`are_turned`).
      constant: also where it is a constant, which readers compute anywhere else.
    """

    tensor: int
    blocks: tuple[int, ...] | None = None
    transposes: tuple[int, ...] | None = None
    constant: bool = False

    @property
    def is_conditional(self) -> bool:
        """Whether the shapes of a configuration decide it."""
        return self.blocks is not None or self.transposes is not None


class Fuse(NamedTuple):
    """A tensor is computed by its readers and no buffer."""

    tensor: int


class Accumulate(NamedTuple):
    """A sum (an equation) to which a dot is added by the library call that makes the dot.

    Attributes:
      equation: index of the sum.
      dot: the tensor of the dot.
      views: the tensors between the dot and the sum: the dot transposed, or times a constant.
      other: the other summand.
      in_place: the sum is written over the other summand.
      replaces: the other summand is made from the donated argument that gives its buffer to the sum, and has none.
    """

    equation: int
    dot: int
    views: tuple[int, ...]
    other: int
    in_place: bool
    replaces: bool


class Save(NamedTuple):
    """A buffer is kept for the backward pass, and nothing computed of it beside it."""

    tensor: int


class KeepResults(NamedTuple):
    """The backward pass does not recompute an equation: where it needs a result, that is saved."""

    equation: int


class Recompute(NamedTuple):
    """The backward pass recomputes an equation."""

    equation: int


class SaveStatistics(NamedTuple):
    """Statistics of a value are saved, and it is recomputed of them, where they take at most this share of its bytes.
    """

    share: float


class SaveNarrowest(NamedTuple):
    """Of an element-wise chain that the backward pass recomputes, the value of the fewest bytes is saved."""


class Compare(NamedTuple):
    """A comparison is never saved: each fusion that reads it compares again."""

    equation: int


class Tile(NamedTuple):
    """Arrays lie in memory in whole tiles of their two innermost dimensions."""


class Innermost(NamedTuple):
    """The two innermost dimensions, ascending, of an array in tiled memory.

    Attributes:
      equation: by which it is so: that of the first one counts.
      default: of tensors for which no other rule says anything.
    """

    tensor: int
    dims: tuple[int, int]
    equation: int = -1
    default: bool = False


class Hold(NamedTuple):
    """A tensor is held in elements of so many bytes; ``copies``: so are its resharded copies."""

    tensor: int
    itemsize: int
    copies: bool = False


class GroupChannels(NamedTuple):
    """An image has its channels in groups."""

    tensor: int
    groups: ChannelGroups


class PadMatrices(NamedTuple):
    """A dot reads its matrices in whole multiples (`jaxplan.xla.rules.gpu.padding`)."""

    equation: int


class Defer(NamedTuple):
    """A weight gradient may be made after one equation, and is made by another."""

    equation: int
    after: int
    by: int


class ChooseOrder(NamedTuple):
    """Gradients are deferred; or made in order, where that is less and a plan communicates nothing or asks for them."""


class Order(NamedTuple):
    """An equation runs elsewhere than where the program has it.

    Attributes:
      after: the equation behind which its result is made; None: where the program has it.
      by: the equation by which it has run, so that its operands live until then; None: where the program has it.
      is_sum: it adds to a carry, over which it writes.
      is_asked: the lowering asks for it (`jaxplan.partition`).
    """

    equation: int
    after: int | None = None
    by: int | None = None
    is_sum: bool = False
    is_asked: bool = False


class Overwrite(NamedTuple):
    """An equation writes a result over an operand, where it reads that last."""

    equation: int
    tensor: int


class Share(NamedTuple):
    """A tensor is the buffer of another, which holds the same."""

    tensor: int
    buffer: int


class Extend(NamedTuple):
    """A tensor lives until an equation, or longer."""

    tensor: int
    until: int


class End(NamedTuple):
    """A tensor lives until an equation."""

    tensor: int
    at: int


class WaitBeside(NamedTuple):
    """Dots that read a tensor beside one whose result is transposed wait until an equation for that transposition."""

    tensor: int
    until: int
    exchange: Exchange


class Rewrite(NamedTuple):
    """A tensor is written in an order of dimensions by the fusion that reads it so."""

    tensor: int
    order: Layout


class Temporary:
    """Base of effects that are buffers beside tensors: copies, borders, summands (`jaxplan.xla.rules.gpu`)."""

    __slots__ = ()


StepEffect = (
    Inline
    | Kernel
    | Absorb
    | Merge
    | Rectify
    | Write
    | Fuse
    | Accumulate
    | Save
    | KeepResults
    | Recompute
    | SaveStatistics
    | SaveNarrowest
    | Compare
    | Tile
    | Innermost
    | Hold
    | GroupChannels
    | PadMatrices
    | Defer
    | ChooseOrder
    | Order
    | Overwrite
    | Share
    | Extend
    | End
    | WaitBeside
    | Rewrite
    | Temporary
)
Effect = StepEffect | PlanEffect
"""Everything that a rule may yield."""
