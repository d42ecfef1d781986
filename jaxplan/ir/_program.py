"""The traced step as plain data: tensors, equations in program order, and where each came from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TensorKind = Literal["input", "constant", "literal", "computed"]
Phase = Literal["forward", "backward", "update"]


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
    """

    index: int
    shape: tuple[int, ...]
    dtype: Any
    itemsize: int
    kind: TensorKind
    path: str = ""
    value: Any = None

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.itemsize

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
    """

    index: int
    primitive: Any
    params: Mapping[str, Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    name_stack: str
    phase: Phase
    origin: Any

    @property
    def name(self) -> str:
        return self.primitive.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A traced step, calls inlined and dead equations removed.

    Attributes:
      inputs, outputs: tensor indices, in the order of the flattened arguments and results.
      in_tree, out_tree: pytree structures of ``(args, kwargs)`` and of the result.
      in_paths, out_paths: key paths, such as ``[0].params['Dense_0']['kernel']``.
      donated: per input, whether its buffer may be reused by an output.
      aliases: output position -> input position of the state leaf that it replaces.
      static_argnums: positions of the arguments that were closed over as Python values.
      fingerprint: SHA-256 over equations and avals; names the program in plan files.
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
    aliases: Mapping[int, int]
    static_argnums: tuple[int, ...]
    fingerprint: str

    def __repr__(self) -> str:
        return (
            f"Program({len(self.equations)} equations, {len(self.inputs)} inputs, {len(self.outputs)} outputs, "
            f"{self.fingerprint[:12]})"
        )
