"""Effects of a compiler rule on a step: one small value for each decision."""

from __future__ import annotations

from typing import NamedTuple


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
      product: the tensor of the dot.
      views: the tensors between the dot and the sum: the dot transposed, or times a constant.
      other: the other summand.
      in_place: the sum is written over the other summand.
      replaces: the other summand is made from the donated argument that gives its buffer to the sum, and has none.
    """

    equation: int
    product: int
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


class Order(NamedTuple):
    """An equation runs elsewhere than where the program has it.

    Attributes:
      after: the equation behind which its result is made; None: where the program has it.
      by: the equation by which it has run, so that its operands live until then; None: where the program has it.
      is_sum: it adds to a carry, over which it writes.
    """

    equation: int
    after: int | None = None
    by: int | None = None
    is_sum: bool = False


Effect = Inline | Kernel | Absorb | Write | Fuse | Accumulate | Save | KeepResults | Recompute | Order
