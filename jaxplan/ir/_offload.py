"""Arrays that live in the memory of the host between two uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jaxplan.ir._barriers import backward_barriers
from jaxplan.ir._blocks import turning_point
from jaxplan.ir._hosted_values import LEAST_SHARE, equations_of_passes
from jaxplan.ir._program import REGION_IN, REGION_OUT
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind

if TYPE_CHECKING:
    from jaxplan.ir._program import Program
    from jaxplan.ir._values import Values

_ELEMENTWISE = "elementwise"
LEAST_OPERAND = 0.01
"""... and so do operands of a recomputed region of less than this share of its largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The arrays that a plan keeps in the memory of the host between two uses.

    State beside the parameters is donated and read by element-wise operators alone, and its successor goes back to the
    host. It is copied to the device for its update (`HostedUpdate`). Parameters are copied for the operators of each
    pass that read them besides (`hosted_values`).

    A recomputed region of the backward pass keeps its operands behind a barrier (`jaxplan.ir._remat`,
    `jax.checkpoint`): those of the first regions, in the order of the forward pass, wait on the host
    (`waiting_values`).

    Attributes:
      inputs: positions among the program's inputs, ascending, of those that are updated.
      outputs: positions of the results that succeed them, in their order.
      of: how many arrays of state beside the parameters could be offloaded.
      parameters: positions of the parameters, ascending; those that are not trained have no successor.
      regions: number of regions whose operands wait on the host, of ``regions_of``.

    >>> str(Offload(inputs=(3, 4), outputs=(1, 2), of=2)), str(Offload(inputs=(3,), outputs=(1,), of=2))
    ('optimizer state on the host', 'optimizer state partly on the host')
    >>> str(Offload(regions=5, regions_of=6))
    'activations of 5 of 6 recomputed blocks on the host'
    >>> str(Offload(inputs=(0, 3), outputs=(0, 1), of=1, parameters=(0, 1)))
    'parameters and optimizer state on the host'
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    of: int = 0
    regions: int = 0
    regions_of: int = 0
    parameters: tuple[int, ...] = ()

    @property
    def arguments(self) -> tuple[int, ...]:
        """Positions of all arguments that live on the host, ascending."""
        return tuple(sorted({*self.inputs, *self.parameters}))

    @property
    def state(self) -> tuple[int, ...]:
        """Positions of those that are no parameters."""
        return tuple(i for i in self.inputs if i not in self.parameters)

    @property
    def cell(self) -> str:
        """The state among them, in a column of a table."""
        return "host" if self.state and len(self.state) == self.of else "part host" if self.state else ""

    def __str__(self) -> str:
        parameters = "parameters" if self.parameters else ""
        state = f"optimizer state{'' if len(self.state) == self.of else ' partly'}" if self.state else ""
        blocks = f"activations of {self.regions} of {self.regions_of} recomputed blocks" if self.regions else ""
        return f"{' and '.join(filter(None, (parameters, state, blocks)))} on the host"


class Waiting(NamedTuple):
    """A value of the forward pass that a recomputed region reads, the equation of its barrier, and the result there."""

    tensor: int
    barrier: int
    copy: int


def waiting_values(program: Program, values: Values, stored: frozenset[int]) -> tuple[tuple[Waiting, ...], ...]:
    """For each recomputed region, in the order of the forward pass, the values that could wait for it on the host.

    Values that anything else of the backward pass reads stay, and so do small ones (`LEAST_OPERAND`).
    """
    turning, equations, tensors = turning_point(program), program.equations, program.tensors
    outputs, found = set(program.outputs), []
    for barrier in backward_barriers(program):
        of = []
        for e in barrier:
            (t,), made = equations[e].operands, values.producer[equations[e].operands[0]]
            is_whole = made >= 0 and equations[made].region < 0 and equations[e].region < 0
            is_forward = is_whole and equations[made].phase == "forward" and made < turning
            others = [c for c in values.consumers[t] if c != e]
            if is_forward and not values.free[t] and t not in stored | outputs and all(c < turning for c in others):
                of.append(Waiting(t, e, equations[e].results[0]))
        most = max((tensors[w.tensor].num_bytes for w in of), default=0)
        of = [w for w in of if tensors[w.tensor].num_bytes >= max(1, LEAST_OPERAND * most)]
        found += [tuple(of)] if of else []
    return tuple(sorted(found, key=lambda of: min(values.producer[w.tensor] for w in of)))


def offloadable(
    program: Program, rules: Sequence[OperatorRule], consumers: Sequence[Sequence[int]], parameters: frozenset[int]
) -> dict[int, int]:
    """Position of each input that can live on the host -> that of its successor.

    These are donated state beside the parameters that element-wise operators alone read; the largest (`LEAST_SHARE`).
    """
    outputs = set(program.outputs)
    state = {pair.input: pair.output for pair in program.pairs if pair.is_state and pair.flow == "updated"}
    sizes = {
        i: program.tensors[t].num_bytes
        for i, t in enumerate(program.inputs)
        if i in state
        and program.donated[i]
        and t not in parameters
        and t not in outputs
        and program.outputs.count(program.outputs[state[i]]) == 1
        and consumers[t]
        and all(rules[e].family == _ELEMENTWISE for e in consumers[t])
    }
    least = LEAST_SHARE * sum(sizes.values())
    return {i: state[i] for i, size in sizes.items() if size and size >= least}

UPDATES_AT_ONCE = 2
"""Updates of which the arrays are copied to the device together: one is computed while the copies of the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedUpdate:
    """Arrays on the host that one update reads together, such as both moments of a parameter.

    Attributes:
      inputs, outputs: these tensors, and their successors.
      equations: all that depend on them, and those that only these need; none where a loop is among them, and the
        arrays cannot be copied to the device one update after the other.
      begin: the equation before which they can run: all else that they depend on comes earlier.
      waits_for: (equation, tensor) of the value, made before, without which the update cannot run: a gradient.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    equations: tuple[int, ...]
    begin: int
    waits_for: tuple[int, int] | None


def hosted_updates(program: Program, values: Values, offload: Offload) -> tuple[HostedUpdate, ...]:
    """The updates of the arrays on the host, in the order in which the values that they wait for are made.

    Each begins once its gradient is there and ends before the one after the next begins, so that the arrays of two
    are on the device at a time. Where one value depends on all of them (a norm of all updates) there is one update.
    """
    hosted = {program.inputs[i]: program.outputs[o] for i, o in zip(offload.inputs, offload.outputs, strict=True)}
    parameters = frozenset(program.inputs[i] for i in offload.parameters)
    found = []
    for inputs, reading in _read_together(program, hosted, parameters):
        of = {"inputs": inputs, "outputs": tuple(hosted[t] for t in inputs)}
        needed = _with_their_operands(program, values, reading)
        loops = [r for r in program.regions if any(e in needed for e in range(r.start, r.stop))]
        if any(r.start <= e < r.stop for r in loops for e in reading):
            begin = min([*reading, *(r.start for r in loops if r.start <= min(reading) < r.stop)])
            found.append(HostedUpdate(**of, equations=(), begin=begin, waits_for=None))
            continue
        own = _needed_alone(program, values, reading, needed)
        equations = tuple(sorted(own))
        begin = max([0, *(r.stop for r in loops), *(e + 1 for e in needed if e not in own)])
        num_elements = program.tensors[inputs[0]].num_elements
        waits_for = _awaited(program, values, equations, num_elements)
        found.append(HostedUpdate(**of, equations=equations, begin=begin, waits_for=waits_for))
    return tuple(sorted(found, key=lambda u: (values.producer[u.waits_for[1]] if u.waits_for else -1, u.equations)))


def _read_together(
    program: Program, hosted: Iterable[int], parameters: frozenset[int]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """The arrays on the host that one value depends on, directly or through others, and the equations that do.

    Of ``parameters`` those of the update alone.
    """
    hosted = tuple(hosted)
    joined = UnionFind(len(hosted))
    of = {t: k for k, t in enumerate(hosted)}  # a value that depends on arrays on the host -> the index of one of them
    reading: dict[int, int] = {}
    passes = equations_of_passes(program) if parameters else frozenset()
    for eqn in program.equations:
        read = [of[t] for t in eqn.operands if t in of and (eqn.index not in passes or t not in parameters)]
        if read:
            for other in read[1:]:
                joined.join(read[0], other)
            reading[eqn.index] = read[0]
            of.update(dict.fromkeys(eqn.results, read[0]))
    together: dict[int, tuple[list[int], list[int]]] = {}
    for k, t in enumerate(hosted):
        together.setdefault(joined.find(k), ([], []))[0].append(t)
    for e, k in reading.items():
        together[joined.find(k)][1].append(e)
    for arrays, equations in together.values():
        yield tuple(arrays), equations


def _with_their_operands(program: Program, values: Values, equations: Sequence[int]) -> set[int]:
    """Equations and all that make their operands."""
    found, left = set(equations), list(equations)
    while left:
        for t in program.equations[left.pop()].operands:
            if (made_by := values.producer[t]) >= 0 and made_by not in found:
                found.add(made_by)
                left.append(made_by)
    return found


def _needed_alone(program: Program, values: Values, reading: Sequence[int], needed: Set[int]) -> set[int]:
    """Equations that read arrays on the host, and those outside of the passes with results that only these read."""
    own, equations, passes = set(reading), program.equations, equations_of_passes(program)
    for e in sorted(needed - own, reverse=True):
        eqn = equations[e]
        is_alone = all(c in own for t in eqn.results for c in values.consumers[t])
        is_of_update = e not in passes and eqn.region < 0 and eqn.name not in (REGION_IN, REGION_OUT)
        if is_of_update and is_alone and program.returned.isdisjoint(eqn.results):
            own.add(e)
    return own


def _awaited(
    program: Program, values: Values, equations: Sequence[int], num_elements: int
) -> tuple[int, int] | None:
    """The value of so many elements that equations read, and that is made last by another one, and its reader.

    A value that was computed from it alone (its cast, its square) is recomputed, so the value itself counts. One
    computed from constants alone may be made at any time, so it is none to wait for.
    """
    found: tuple[int, int] | None = None
    own = set(equations)
    for e in equations:
        for t in program.equations[e].operands:
            reader, made_by = e, values.producer[t]
            while made_by >= 0 and made_by not in own and (source := _only_array(program, made_by)) is not None:
                reader, t = made_by, source
                made_by = values.producer[t]
            is_wanted = made_by >= 0 and made_by not in own and program.tensors[t].num_elements == num_elements
            if is_wanted and not values.free[t] and (found is None or made_by > values.producer[found[1]]):
                found = reader, t
    return found


def _only_array(program: Program, equation: int) -> int | None:
    """The array that an equation of the update computes its result from, where there is one alone."""
    eqn = program.equations[equation]
    arrays = [t for t in eqn.operands if program.tensors[t].kind != "literal"]
    return arrays[0] if eqn.phase == "update" and len(arrays) == 1 and len(eqn.results) == 1 else None
