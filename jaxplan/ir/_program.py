"""The traced step as plain data: tensors, equations in program order, and where each came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxplan.core._paths import argument_names, readable_path

TensorKind = Literal["input", "constant", "literal", "computed"]
Phase = Literal["forward", "backward", "update"]
RematPolicy = Literal["contractions", "all"]
LoopRematPolicy = Literal["contractions", "named", "all"]
_BUT: Mapping[LoopRematPolicy, str] = {"contractions": " but contractions", "named": " but named values", "all": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One value of the program.

    Attributes:
      index: position in ``Program.tensors``.
      shape: global shape.
      dtype: NumPy or extended (PRNG key) dtype.
      itemsize: bytes of one element.
      kind: how the value comes to be.
      path: key path of an input in the user's arguments, ``''`` otherwise.
      value: the value of a literal or constant, ``None`` otherwise.
      trips: how often it is made in one step: the product of the lengths of the loops around it.
      num_elements, num_bytes: of the whole value.
    """

    index: int
    shape: tuple[int, ...]
    dtype: Any
    itemsize: int
    kind: TensorKind
    path: str = ""
    value: Any = None
    trips: int = 1
    num_elements: int = field(init=False, compare=False)
    num_bytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_elements", math.prod(self.shape))
        object.__setattr__(self, "num_bytes", self.num_elements * self.itemsize)

    def __repr__(self) -> str:
        return f"%{self.index}:{self.dtype}[{','.join(map(str, self.shape))}]{' ' + self.path if self.path else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """One primitive application, calls inlined.

    Attributes:
      index: position in ``Program.equations`` (program order).
      primitive: the JAX primitive; ``name`` is its registered name.
      params: its parameters.
      operands, results: tensor indices; a dropped result has an index nobody reads.
      name_stack: name stack with the stacks of the inlined calls in front.
      phase: ``backward`` when transposed by differentiation (JAX wraps the name stack in ``transpose(...)``),
        ``update`` when not transposed and fed by a backward equation, else ``forward``.
      origin: the jaxpr equation it was read from (context and traceback for replay and errors).
      region: index of the innermost region around it, -1 outside of all.
    """

    index: int
    primitive: Any
    params: Mapping[str, Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    name_stack: str
    phase: Phase
    origin: Any
    region: int = -1
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.primitive.name)

    def at(
        self,
        index: int,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        *,
        phase: Phase | None = None,
        region: int | None = None,
    ) -> Equation:
        """The same at another place on other tensors, in another phase and region where they are given; itself where
        nothing differs."""
        phase = self.phase if phase is None else phase
        region = self.region if region is None else region
        is_same = index == self.index and phase == self.phase and region == self.region
        if is_same and operands == self.operands and results == self.results:
            return self
        return Equation(
            index=index,
            primitive=self.primitive,
            params=self.params,
            operands=operands,
            results=results,
            name_stack=self.name_stack,
            phase=phase,
            origin=self.origin,
            region=region,
        )


RegionKind = Literal["scan", "while", "cond"]
REGION_IN, REGION_OUT = "region_in", "region_out"
"""Primitives of the equations through which values enter and leave a region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A loop or branch, its bodies inlined once into the program.

    Equations of a region are contiguous. A value enters a body through an equation `REGION_IN` of role
    ``const``, ``carry``, ``x`` (a slice of the operand per trip) or ``operand`` (of a branch), and leaves through an
    equation `REGION_OUT` of role ``carry`` (operands: the carry as it enters, and as it leaves, the body), ``y``
    (stacked over the trips) or ``branch`` (one operand per branch). Both run outside, the bodies between them.

    Attributes:
      index: position in ``Program.regions``.
      parent: the region around it, -1 when there is none.
      kind: ``scan``, ``while`` or ``cond``.
      trips: trips of a scan, and of a ``while`` that counts from one number to another; 1 where they are not known.
      params: parameters of the primitive (``reverse``, ``unroll``, ...).
      selector: the outer scalar that picks the branch of a ``cond``, else None.
      predicate: the inner scalar that says whether a ``while`` goes on, else None.
      start, stop: range of its equations, boundaries included.
      entries: per body, equations through which values enter it, in the order of the primitive's operands; carries
        of a ``while`` enter its condition with its body, which is body 0.
      exits: equations through which values leave.
      ranges: per body, its equations without the boundary.
    """

    index: int
    parent: int
    kind: RegionKind
    trips: int
    params: Mapping[str, Any]
    origin: Any
    selector: int | None = None
    predicate: int | None = None
    start: int = 0
    stop: int = 0
    entries: tuple[tuple[int, ...], ...] = ()
    exits: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


PairFlow = Literal["updated", "unchanged", "moved", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePair:
    """An input and the output that takes its place in the next call; both have one sharding.

    Attributes:
      input, output: positions among the program's inputs and outputs.
      flow: ``updated`` when the output is computed from the input along its elements, ``unchanged`` when it is the
        input itself, ``moved`` when it is another input unchanged (buffers that are swapped), ``none`` when it is
        computed of other arguments and the structure says that it takes the input's place.
      placed: whether the output stands at the same place in the structure: in a subtree that comes back whole, or
        under the same key; and no other input that does not come back fits that place as well.
      is_state: whether the input is state (a parameter, an optimizer slot, a cache), not a batch of which something
        of its shape is computed: it is placed, or is donated by name, or its update is of gradients or writes into it.
    """

    input: int
    output: int
    flow: PairFlow
    placed: bool
    is_state: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """How a step works through its batch.

    Attributes:
      num: number of slices, one after the other; gradients are added up.
      dims: key path of each input that holds examples -> the dimension along them.
    """

    num: int
    dims: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.num} micro-batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRemat:
    """Layers of loops that the backward pass recomputes (`jaxplan.ir._loop_remat`).

    Attributes:
      policy: ``all`` keeps what enters each layer alone, ``contractions`` results of costly contractions too, ``named``
        values that the step names with `jax.ad_checkpoint.checkpoint_name`.
      share: of the layers of each loop, more than 0 and at most 1: those that the loop runs first, whose values wait
        longest. The loop is cut in two behind them.
      rest: the policy of the other layers; None: they are not recomputed.
    """

    policy: LoopRematPolicy
    share: float = 1.0
    rest: LoopRematPolicy | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected a share of the layers from above 0 to 1, got {self.share}")

    def __str__(self) -> str:
        """Such as ``recomputes layers of loops but contractions``."""
        if self.share == 1:
            return f"recomputes layers of loops{_BUT[self.policy]}"
        others = "" if self.rest is None else f", the others{_BUT[self.rest]}"
        return f"recomputes {100 * self.share:.0f} % of layers of loops{_BUT[self.policy]}{others}"

    def count(self, length: int) -> int:
        """How many layers of a loop of ``length`` are recomputed: at least one."""
        return max(1, round(self.share * length))


@dataclass(frozen=True, slots=True, kw_only=True)
class SortBlocks:
    """Rows that are sorted for ragged dots, in ``num`` blocks each sorted by itself (`jaxplan.ir.local_sorts`)."""

    num: int

    def __str__(self) -> str:
        """Such as ``rows sorted in 8 blocks``."""
        return f"rows sorted in {self.num} blocks"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """Where a program came from, and how to get the program of other arguments from there.

    Attributes:
      step: the step, and ``options``: how it takes its arguments.
      spelling: number of positional arguments, and names of those that were given by keyword.
      statics: (parameter, value) of each setting that it was traced for.
      avals: (shape, dtype, weak type) of each input.
      trace: ``(args, kwargs) -> Program``.
      resized: traces it again with other shapes at some key paths: ``{path: shape} -> Program``.
      sliced: the program of the same arguments that works through its batch in slices.
      strata: its equations, sorted into a loop over slices of the batch and the rest (`jaxplan.ir.microbatch`).
      recomputed: the program of the same arguments that computes layers of its loops again.
      sorted_in_blocks: the program of the same arguments that sorts rows for ragged dots in blocks.
    """

    step: Callable[..., Any]
    options: Any
    spelling: tuple[int, tuple[str, ...]]
    statics: tuple[tuple[Any, Any], ...]
    avals: tuple[tuple[Any, ...], ...]
    trace: Callable[[Sequence[Any], Mapping[str, Any]], Program]
    resized: Callable[[Mapping[str, tuple[int, ...]]], Program]
    sliced: Callable[[MicroBatches | None], Program]
    strata: Callable[[MicroBatches], Any]
    recomputed: Callable[[LoopRemat | None], Program]
    sorted_in_blocks: Callable[[SortBlocks | None], Program]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A traced step, calls inlined and dead equations removed.

    Attributes:
      inputs, outputs: tensor indices, in the order of the flattened arguments and results.
      given, returned: the same tensors as sets, to ask whether one is among them.
      in_tree, out_tree: pytree structures of ``(args, kwargs)`` and of the result.
      in_paths, out_paths: key paths, such as ``[0].params['Dense_0']['kernel']``.
      donated: per input, whether its buffer may be reused by an output.
      pairs: inputs and the outputs that succeed them (`jaxplan.ir._state`).
      aliases: output position -> position of the input that it succeeds; the two have one sharding.
      static_argnums: positions of the arguments that were closed over as Python values.
      regions: loops and branches; an inner one comes after the one around it.
      fingerprint: SHA-256 over equations and avals; names the program in plan files.
      donate_argnums: the arguments that were donated by name; None when those that come back updated are.
      source: the step that it was traced from; None where it was put together otherwise.
      microbatches: the slices in which it works through its batch; None: as the step says.
      sequences: how attention over a split sequence gets its keys (`jaxplan.ir.attention`); None: as the step says.
      recomputed_loops: what it recomputes of the layers of its loops; None: as the step says.
      sort_blocks: the blocks in which it sorts rows for ragged dots; None: as the step says.
    """

    tensors: tuple[Tensor, ...]
    equations: tuple[Equation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    in_tree: Any
    out_tree: Any
    in_paths: tuple[str, ...]
    out_paths: tuple[str, ...]
    donated: tuple[bool, ...]
    pairs: tuple[StatePair, ...]
    static_argnums: tuple[int, ...]
    fingerprint: str
    regions: tuple[Region, ...] = ()
    donate_argnums: tuple[int, ...] | None = None
    source: Source | None = field(default=None, repr=False, compare=False)
    microbatches: MicroBatches | None = None
    sequences: str | None = None
    recomputed_loops: LoopRemat | None = None
    sort_blocks: SortBlocks | None = None
    aliases: Mapping[int, int] = field(init=False, repr=False, compare=False)
    given: frozenset[int] = field(init=False, repr=False, compare=False)
    returned: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "aliases", {pair.output: pair.input for pair in self.pairs})
        object.__setattr__(self, "given", frozenset(self.inputs))
        object.__setattr__(self, "returned", frozenset(self.outputs))

    @property
    def state(self) -> dict[int, int]:
        """Tensor of each input that is state -> tensor of the output that succeeds it."""
        return {self.inputs[pair.input]: self.outputs[pair.output] for pair in self.pairs if pair.is_state}

    @property
    def replaced(self) -> dict[int, int]:
        """Tensor of each output that takes the buffer of a donated input -> tensor of that input."""
        return {self.outputs[o]: self.inputs[i] for o, i in self.aliases.items() if self.donated[i]}

    @property
    def in_avals(self) -> tuple[str, ...]:
        """Dtype and shape of each input, such as ``float32[16,32]``."""
        tensors = [self.tensors[t] for t in self.inputs]
        return tuple(f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]" for tensor in tensors)

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the step's positional parameters, as far as they are known."""
        return argument_names(self.source.step if self.source else None)

    @property
    def readable_in_paths(self) -> tuple[str, ...]:
        """`in_paths` as people write them, such as ``state/params/Dense_0/kernel``."""
        names = self.argument_names
        return tuple(readable_path(path, names) for path in self.in_paths)

    def __repr__(self) -> str:
        return (
            f"Program({len(self.equations)} equations, {len(self.inputs)} inputs, {len(self.outputs)} outputs, "
            f"{self.fingerprint[:12]})"
        )


def parse_aval(text: str) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a text of `Program.in_avals`.

    Example:
      >>> parse_aval("float32[16,32]"), parse_aval("int32[]")
      (('float32', (16, 32)), ('int32', ()))
    """
    dtype, _, sizes = text.rstrip("]").rpartition("[")
    return dtype, tuple(int(size) for size in sizes.split(",") if size)
