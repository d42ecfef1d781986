"""Which primitives of JAX have a rule and a count, of which kind, and their tests: `python -m jaxplan coverage`."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from jaxplan.core._compat import Primitive
from jaxplan.ir import count_kind
from jaxplan.ir.rules import registered_primitives
from jaxplan.ir.rules._elsewhere import ELSEWHERE, WHOLE_REASONS
from jaxplan.ir.rules._evidence import EVIDENCE

_SCIPY = ("cluster.vq", "fft", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse.linalg")
_MODULES = (
    *("jax.custom_batching", "jax.ffi"),
    *(f"jax.experimental.{name}" for name in ("buffer_callback", "compute_on", "custom_partitioning", "fused")),
    *(f"jax.experimental.{name}" for name in ("pallas", "rnn", "sparse", "sparse.linalg")),
    *("jax.nn", "jax.numpy.linalg", "jax.random", "jax.scipy.spatial.transform", "jax.scipy.special"),
    *(f"jax.scipy.{name}" for name in (*_SCIPY, "stats")),
    *("flax.linen", "optax"),
)
_LEFT_OUT = re.compile(
    r"pallas\.(mosaic|triton|tpu|fuser|ops)|mosaic|"
    r"experimental\.(?!buffer_callback|compute_on|custom_partitioning|fused|pallas|rnn|sparse)"
)
_REGION_MARKERS = frozenset({"region_in", "region_out"})
"""Primitives of jaxplan's own, which stand for the ends of loops and branches."""
_SPLITTING = ("map", "reduce", "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The rule, the count and the tests of one primitive.

    Attributes:
      name: of the primitive.
      kind: the kinds of factors that its rule has, ``map reduce whole``; ``elsewhere`` where it needs none;
        ``none`` where it has none.
      count: how its work is counted, '' where it is not.
      tested: names of the tests, empty where none is needed.
      reason: why nothing is split, '' where something is.
    """

    name: str
    kind: str
    count: str
    tested: str
    reason: str

    @property
    def splits(self) -> bool:
        return any(kind in self.kind.split() for kind in _SPLITTING)


def installed_primitives() -> tuple[str, ...]:
    """Names of the primitives that the installed JAX, Flax and Optax can put into a program, sorted.

    Found by importing their public modules, and looking through the modules of JAX that are then there; those of
    Pallas's backends, which stand in kernels only, and of experiments that no step holds, are left out.
    """
    for name in _MODULES:
        with contextlib.suppress(ImportError):  # Flax and Optax need not be there
            importlib.import_module(name)
    modules = [
        module
        for name, module in sys.modules.items()
        if name.split(".")[0] == "jax" and module is not None and not _LEFT_OUT.search(name)
    ]
    return tuple(
        sorted({v.name for m in modules for v in list(vars(m).values()) if isinstance(v, Primitive)})
    )


def coverage() -> tuple[Coverage, ...]:
    """One entry per primitive of the installed JAX."""
    known = frozenset(registered_primitives()) - _REGION_MARKERS
    return tuple(
        _entry(name, name in known) for name in installed_primitives() if name not in _REGION_MARKERS
    )


def _entry(name: str, is_registered: bool) -> Coverage:
    count = count_kind(name)
    if is_registered and name not in ELSEWHERE:
        kinds, tested = EVIDENCE.get(name, ("", ""))
        splits = any(kind in kinds.split() for kind in _SPLITTING)
        reason = "" if splits else WHOLE_REASONS.get(name, "not tried")
        return Coverage(name=name, kind=kinds or "whole", count=count, tested=tested, reason=reason)
    if name in ELSEWHERE:
        return Coverage(name=name, kind="elsewhere", count=count, tested="", reason=ELSEWHERE[name])
    reason = "unknown: it runs replicated, with a warning"
    return Coverage(name=name, kind="none", count=count, tested="", reason=reason)


def coverage_table(entries: Iterable[Coverage]) -> str:
    """The entries as lines, and a summary."""
    entries = list(entries)
    operators = [e for e in entries if e.kind != "elsewhere"]
    width = max(len(entry.name) for entry in entries)
    wide = max(len(entry.count) for entry in operators)
    lines = [f"{'primitive':<{width}}  {'kind of rule':<24}  {'count':<{wide}}  tested by / reason"]
    for entry in operators:
        notes = "; ".join(filter(None, (entry.tested, entry.reason)))
        line = f"{entry.name:<{width}}  {entry.kind:<24}  {entry.count or 'none':<{wide}}  {notes}"
        lines.append(line.rstrip())
    lines += ["", "needs neither rule nor count:"]
    for reason in dict.fromkeys(e.reason for e in entries if e.kind == "elsewhere"):
        names = [e.name for e in entries if e.kind == "elsewhere" and e.reason == reason]
        lines.append(f"  {reason}: {', '.join(names)}")
    return "\n".join([*lines, "", _summary(entries, operators)])


def _summary(entries: list[Coverage], operators: list[Coverage]) -> str:
    splitting = sum(entry.splits for entry in operators)
    unknown = [entry.name for entry in operators if entry.kind == "none"]
    uncounted = [entry.name for entry in operators if not entry.count]
    untested = [entry.name for entry in operators if not entry.tested]
    gaps = (("unaccounted for", unknown), ("without a count", uncounted), ("without a test of their own", untested))
    return (
        f"{len(entries)} primitives: {len(entries) - len(operators)} need no rule, {len(operators)} are operators, of "
        f"which {splitting} ({splitting / len(operators):.1%}) can be split\n"
        + "; ".join(f"{what}: {', '.join(names) or 'none'}" for what, names in gaps)
    )
