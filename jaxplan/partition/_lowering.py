"""The lowering decisions of a plan, as data: shardings and transfers of every tensor, order constraints and barriers.

They are decided once (`jaxplan.partition.decide_lowering`), are saved with the plan, and are all that the lowering
reads besides the program itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxplan.cost import Span, Transfer
from jaxplan.mesh import Sharding, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """One tensor brought to one other sharding, for all of its readers that want it (`jaxplan.cost.Transfer`).

    Attributes:
      tensor: the tensor.
      carried: the tensor that travels: the same, or the narrower one that it was cast from.
      dtype: in which it travels; None: its own.
      steps: at least one.
      spans: executions in program order.
      repeated: gathered again in the backward pass, not kept from the forward pass.
      is_shared: its first steps are those of an earlier resharding of the same value.
    """

    tensor: int
    carried: int
    dtype: str | None
    steps: tuple[Step, ...]
    spans: tuple[Span, ...]
    repeated: bool = False
    is_shared: bool = False

    @classmethod
    def of(cls, transfer: Transfer, dtype: str | None) -> Resharding:
        """The resharding that a transfer stands for."""
        return cls(
            tensor=transfer.tensor,
            carried=transfer.carried,
            dtype=dtype,
            steps=transfer.path.steps,
            spans=transfer.spans,
            repeated=transfer.repeated,
            is_shared=bool(transfer.shared),
        )

    @property
    def source(self) -> Sharding:
        return self.steps[0].source

    @property
    def target(self) -> Sharding:
        return self.steps[-1].target

    def execution_at(self, equation: int) -> int:
        """Which execution makes the copy that an equation reads, by its place in ``spans``."""
        return next(i for i, span in enumerate(self.spans) if equation in span.readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order constraint: one dot runs only after another.

    Attributes:
      equation: a weight gradient.
      after: the input gradient that runs first.
      operand: position of the operand of ``equation`` that is made to depend on the result of ``after``.
    """

    equation: int
    after: int
    operand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A dot that runs only after all earlier weight gradients.

    Attributes:
      equation: the dot.
      operand: position of the operand that passes through the barrier.
      is_resident: whether that operand is a buffer, not computed inside of the dot.
    """

    equation: int
    operand: int
    is_resident: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TripBarrier:
    """Tensors of a loop's body that are read only after earlier dots of the trip.

    Attributes:
      equation: the first that reads one of them so.
      tensors: they pass through the barrier.
      behind: the results of the dots.
    """

    equation: int
    tensors: tuple[int, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """A weight gradient that the compiler is predicted to run later than the program has it.

    Attributes:
      equation: the dot.
      after: it runs after this equation,
      by: and at the latest at this one.
    """

    equation: int
    after: int
    by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order of execution that is asked of the compiler, and deviations that are predicted.

    Attributes:
      orders: order constraints.
      barriers: dots that run only after all earlier weight gradients.
      trip_barriers: tensors of loops that are read only after earlier dots of the trip.
      recompute_barriers: first equation of each barrier at which a recomputed block begins, and which waits for all
        earlier weight gradients and for the summands of those that are added up; every other such barrier waits for the
        gradients that were complete at the barrier before it.
      deferred: weight gradients that are predicted to run late.
    """

    orders: tuple[Order, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    trip_barriers: tuple[TripBarrier, ...] = ()
    recompute_barriers: tuple[int, ...] = ()
    deferred: tuple[Deferred, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherGuard:
    """Parameters that are gathered only once the operands of a dot, or the rows of a look-up, are in memory.

    Attributes:
      equation: a dot, or a look-up.
      parameters: tensors that are gathered later.
      operands: positions of the operands that pass through the barrier; of a look-up none: its rows pass.
    """

    equation: int
    parameters: tuple[int, ...]
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGuard:
    """A dot-merger guard: a dot reads the operands that it shares as if they were other arrays.

    Attributes:
      equation: the dot.
      shared: for each operand that it shares, the first dot that reads it and the position of the operand.
    """

    equation: int
    shared: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpooling:
    """How the gradient of a max pooling recomputes the pooled array once its cotangent is computed.

    Attributes:
      equation: the gradient of the pooling.
      arrays: (equation, tensor that it reads) of arrays in memory that wait for the cotangent.
      free: tensors that are computed from constants alone and read as they are.
      recomputed: equations to evaluate once more, in order; none where the pooled array is in memory itself.
    """

    equation: int
    arrays: tuple[tuple[int, int], ...]
    free: tuple[int, ...]
    recomputed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The lowering decisions of one plan. Tensors and equations are given by their index in the program.

    Attributes:
      homes: per tensor the sharding in which it is made or comes in; None: replicated without a constraint.
      reads: equation -> the sharding in which it reads each operand; an equation that is missing reads whole arrays.
      pinned: results that are constrained to their sharding.
      islands: equation -> factor of its rule -> atomic axes that split it, where it runs in a manual region.
      micro_batch_parts: parts of the batch that micro-batches are cut out of, the same for every array.
      reshardings: in order of first execution, with the dtype in which each travels.
      schedule: order constraints and barriers.
      reduced_at_once: gradient of a parameter -> its resharding, executed as soon as the gradient is made.
      stored_gradients: gradients of parameters that are made in the sharding in which the parameter is stored.
      sums: gradients of biases and scales; their sums over the devices are combined with others.
      summands: parts of gradients that are added up before they are reduced.
      table_gradients: updates of zeros that make the gradient of a large table; they run one after the other.
      regather_anchors: dots, weight gradients excluded, whose result a repeated gather may wait for, on chips that fuse
        operators into dots.
      gather_guards: parameters that are not gathered earlier.
      merge_guards: dots that are not merged with others of the same operand.
      written: equations whose results are materialised: look-ups in gathered tables, and slices that dots read in two
        orders.
      written_copies: (tensor, sharding) of copies that are materialised whole although only slices of them are read.
      unpoolings: gradients of max pooling.
      relaid: equations whose results are stored in the order of dimensions that takes the least padding.
      padded: tensors that several dots read with padding, and so pass no barrier in between.
    """

    homes: tuple[Sharding | None, ...]
    reads: Mapping[int, tuple[Sharding, ...]]
    pinned: frozenset[int]
    islands: Mapping[int, Mapping[int, tuple[int, ...]]]
    reshardings: tuple[Resharding, ...]
    schedule: Schedule = Schedule()
    micro_batch_parts: int = 1
    reduced_at_once: Mapping[int, int]
    stored_gradients: frozenset[int] = frozenset()
    sums: frozenset[int] = frozenset()
    summands: frozenset[int] = frozenset()
    table_gradients: frozenset[int] = frozenset()
    regather_anchors: frozenset[int] = frozenset()
    gather_guards: tuple[GatherGuard, ...] = ()
    merge_guards: tuple[MergeGuard, ...] = ()
    written: frozenset[int] = frozenset()
    written_copies: frozenset[tuple[int, Sharding]] = frozenset()
    unpoolings: tuple[Unpooling, ...] = ()
    relaid: frozenset[int] = frozenset()
    padded: frozenset[int] = frozenset()

    def home(self, tensor: int, rank: int) -> Sharding:
        """The sharding in which a tensor of so many dimensions is made or comes in."""
        home = self.homes[tensor]
        return Sharding.replicated(rank) if home is None else home
