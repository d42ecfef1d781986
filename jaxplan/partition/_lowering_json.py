"""Lowering decisions as JSON, with numbers in the place of shardings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxplan.core._json import MalformedError, required, typed
from jaxplan.cost import Span
from jaxplan.mesh import Sharding, Step
from jaxplan.partition._lowering import GatherGuard, Lowering, MergeGuard, Resharding, Schedule, Unpooling

_SETS = (
    *("pinned", "stored_gradients", "sums", "summands", "table_gradients"),
    *("regather_anchors", "written", "relaid", "padded"),
)
_GUARDS = ("gather_guards", "merge_guards", "unpoolings")
_Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedSharding:
    dims: _Dims
    partial: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedStep:
    """A step; ``target`` is the number of a sharding."""

    kind: str
    axes: tuple[int, ...]
    dim: int | None
    to_dim: int | None
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedResharding:
    """As `Resharding`; ``source`` is the number of a sharding."""

    tensor: int
    carried: int
    dtype: str | None
    source: int
    steps: tuple[_SavedStep, ...]
    spans: tuple[Span, ...]
    repeated: bool
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """As `Lowering`.

    Attributes:
      shardings: every distinct sharding.
      homes: per tensor one more than the number of its sharding; 0: none.
      reads: (equation, numbers of shardings, one for each operand).
      islands: (equation, (factor, atomic axes) for each factor that is split).
      reduced_at_once: (tensor, number of its resharding).
      written_copies: (tensor, number of a sharding).
    """

    shardings: tuple[_SavedSharding, ...]
    homes: tuple[int, ...]
    reads: tuple[tuple[int, tuple[int, ...]], ...]
    islands: tuple[tuple[int, tuple[tuple[int, tuple[int, ...]], ...]], ...]
    reshardings: tuple[_SavedResharding, ...]
    schedule: Schedule
    micro_batch_parts: int
    reduced_at_once: tuple[tuple[int, int], ...]
    written_copies: tuple[tuple[int, int], ...]
    gather_guards: tuple[GatherGuard, ...]
    merge_guards: tuple[MergeGuard, ...]
    unpoolings: tuple[Unpooling, ...]
    pinned: tuple[int, ...]
    stored_gradients: tuple[int, ...]
    sums: tuple[int, ...]
    summands: tuple[int, ...]
    table_gradients: tuple[int, ...]
    regather_anchors: tuple[int, ...]
    written: tuple[int, ...]
    relaid: tuple[int, ...]
    padded: tuple[int, ...] = ()


class _Numbers:
    """Numbers of shardings in order of appearance."""

    def __init__(self) -> None:
        self.of: dict[Sharding, int] = {}

    def __call__(self, sharding: Sharding) -> int:
        return self.of.setdefault(sharding, len(self.of))


def lowering_to_json(lowering: Lowering, decided_for: Any) -> dict[str, Any]:
    """Plain data, the same for equal decisions.

    Args:
      decided_for: JSON data of the fields of a plan that the decisions belong to; a digest covers them too.
    """
    number = _Numbers()
    data: dict[str, Any] = {
        "homes": [0 if home is None else 1 + number(home) for home in lowering.homes],
        "reads": [[e, [number(sharding) for sharding in shardings]] for e, shardings in sorted(lowering.reads.items())],
        "islands": [
            [e, [[f, list(axes)] for f, axes in sorted(split.items())]]
            for e, split in sorted(lowering.islands.items())
        ],
        "reshardings": [_resharding(resharding, number) for resharding in lowering.reshardings],
        "schedule": asdict(lowering.schedule),
        "micro_batch_parts": lowering.micro_batch_parts,
        "reduced_at_once": [list(pair) for pair in sorted(lowering.reduced_at_once.items())],
        "written_copies": sorted([t, number(sharding)] for t, sharding in lowering.written_copies),
        **{name: [asdict(guard) for guard in getattr(lowering, name)] for name in _GUARDS},
        **{name: sorted(getattr(lowering, name)) for name in _SETS},
    }
    data["shardings"] = [{"dims": sharding.dims, "partial": sharding.partial} for sharding in number.of]
    return {"digest": _digest(data, decided_for), **data}


def _resharding(resharding: Resharding, number: _Numbers) -> dict[str, Any]:
    return {
        "tensor": resharding.tensor,
        "carried": resharding.carried,
        "dtype": resharding.dtype,
        "source": number(resharding.source),
        "steps": [
            {
                "kind": step.kind,
                "axes": step.axes,
                "dim": step.dim,
                "to_dim": step.to_dim,
                "target": number(step.target),
            }
            for step in resharding.steps
        ],
        "spans": [asdict(span) for span in resharding.spans],
        "repeated": resharding.repeated,
        "is_shared": resharding.is_shared,
    }


def _digest(data: Mapping[str, Any], decided_for: Any) -> str:
    """A hash of the decisions and of the plan that they were made for, so that an edit of either is seen."""
    return hashlib.sha256(json.dumps([data, decided_for], sort_keys=True).encode()).hexdigest()[:32]


def lowering_from_json(data: Any, decided_for: Any) -> Lowering:
    """Read the data of `lowering_to_json`.

    Raises:
      MalformedError: a field is missing or malformed, or the decisions are not those that were saved with the plan.
    """
    given = typed(dict[str, Any], data, "lowering")
    rest = {name: value for name, value in given.items() if name != "digest"}
    if required(given, "digest") != _digest(rest, decided_for):
        raise MalformedError("the lowering decisions are not those that were saved with this plan")
    saved = typed(_Saved, rest, "lowering")
    sets: dict[str, Any] = {name: frozenset(getattr(saved, name)) for name in _SETS}
    shardings = [Sharding(sharding.dims, sharding.partial) for sharding in saved.shardings]
    return Lowering(
        homes=tuple(shardings[n - 1] if n else None for n in saved.homes),
        reads={e: tuple(shardings[n] for n in numbers) for e, numbers in saved.reads},
        islands={e: dict(split) for e, split in saved.islands},
        reshardings=tuple(_read_resharding(each, shardings) for each in saved.reshardings),
        schedule=saved.schedule,
        micro_batch_parts=saved.micro_batch_parts,
        reduced_at_once=dict(saved.reduced_at_once),
        written_copies=frozenset((t, shardings[n]) for t, n in saved.written_copies),
        gather_guards=saved.gather_guards,
        merge_guards=saved.merge_guards,
        unpoolings=saved.unpoolings,
        **sets,
    )


def _read_resharding(saved: _SavedResharding, shardings: Sequence[Sharding]) -> Resharding:
    steps, source = [], shardings[saved.source]
    for each in saved.steps:
        target = shardings[each.target]
        step = Step(
            kind=each.kind, axes=each.axes, dim=each.dim, to_dim=each.to_dim, source=source, target=target
        )
        steps.append(step)
        source = target
    return Resharding(
        tensor=saved.tensor,
        carried=saved.carried,
        dtype=saved.dtype,
        steps=tuple(steps),
        spans=saved.spans,
        repeated=saved.repeated,
        is_shared=saved.is_shared,
    )
