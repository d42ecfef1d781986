"""The figures of an audit as plain data: predicted beside compiled, a row for each kind and group of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from jaxplan.audit._hlo import Collective
from jaxplan.audit._hlo_liveness import Holding

MEMORY_TOLERANCE = (
    0.05  # compiled memory may exceed the predicted by as much: scratch of library calls, fragmentation
)
FLOPS_TOLERANCE = 0.01
HOST_TOLERANCE = 0.01


class Verdict(Enum):
    """How a kind and group of collectives fared."""

    AGREES = "agrees"
    SMALL = "small"  # both totals below `SMALL_BYTES` or `SMALL_SHARE`: not judged
    UNEXPECTED = "unexpected"  # the plan asked for none
    MISSING = "missing"  # the compiler made none
    MORE = "more bytes"
    FEWER = "fewer bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Totals of one kind over one set of device groups; bytes are per device and step.

    `axes` names the atomic axes that span the groups, empty where no set of axes does; `examples` are
    `op_name (source)` of the largest compiled ones.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    predicted_count: int
    predicted_bytes: int
    compiled_count: int
    compiled_bytes: int
    verdict: Verdict
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether predicted and compiled agree, or are both too small to matter."""
        return self.verdict in (Verdict.AGREES, Verdict.SMALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditData:
    """A predicted program beside the compiled one; bytes and FLOPs are per device and step.

    `predicted_parts` and `compiled_parts` are (name, bytes) that sum to the two memories; `held` are the parts of the
    compiled program's temporaries at their peak, largest first.
    """

    predicted_memory_bytes: int
    compiled_memory_bytes: int
    predicted_flops: int
    compiled_flops: int
    rows: tuple[CollectiveRow, ...]
    rematerialised: bool
    uncounted_calls: tuple[str, ...] = ()
    unknown_loops: tuple[str, ...] = ()
    unexpected: tuple[Collective, ...] = ()
    predicted_parts: tuple[tuple[str, int], ...] = ()
    compiled_parts: tuple[tuple[str, int], ...] = ()
    held: tuple[Holding, ...] = ()
    predicted_host_bytes: int = 0
    compiled_host_bytes: int = 0

    @property
    def collectives_ok(self) -> bool:
        """Whether every kind and group agrees within the tolerance."""
        return all(row.ok for row in self.rows)

    @property
    def memory_ok(self) -> bool:
        """Whether the compiled program needs no more than predicted plus `MEMORY_TOLERANCE`."""
        return self.compiled_memory_bytes <= self.predicted_memory_bytes * (1 + MEMORY_TOLERANCE)

    @property
    def host_ok(self) -> bool:
        """Whether as many bytes live on the host as the plan has there, within `HOST_TOLERANCE`."""
        planned, compiled = self.predicted_host_bytes, self.compiled_host_bytes
        return abs(compiled - planned) <= HOST_TOLERANCE * max(planned, compiled)

    @property
    def flops_ok(self) -> bool:
        """Whether the compiled program multiplies no more than predicted plus `FLOPS_TOLERANCE`."""
        return self.compiled_flops <= self.predicted_flops * (1 + FLOPS_TOLERANCE)

    @property
    def ok(self) -> bool:
        """Whether the compiled program is the one that the plan described."""
        return self.collectives_ok and self.memory_ok and self.host_ok and self.flops_ok and not self.rematerialised
