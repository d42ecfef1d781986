"""The frontier: every plan that no other plan beats in both step time and memory per device."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxplan.core._files import write_whole
from jaxplan.core._json import MalformedError, required, typed
from jaxplan.errors import ArgumentError, PlanFileError, UnsupportedError
from jaxplan.plans._advice import Advice
from jaxplan.plans._frontier_data import FrontierData
from jaxplan.plans._infeasible import infeasible_error
from jaxplan.plans._plan import Plan
from jaxplan.plans._undominated import undominated

SCHEMA = "jaxplan.frontier"
_MALFORMED_MSG = (
    "the frontier file has a missing or malformed field: {error}.\n"
    "  expected: the fields that Frontier.save writes\n"
    "  likely cause: the file was edited\n"
    "  fix: save the frontier again, or plan again with jaxplan.plan"
)
SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frontier(FrontierData[Plan]):
    """Pareto-optimal plans by ascending memory and descending time.

    Attributes:
      points: at least one plan; memory strictly ascends, time strictly descends.
      references: named strategies priced the same way, for comparison; they need not be on the frontier.
      absent: strategies that do not apply to the step, and why.
      memory_limit_bytes: the limit that filtered the points, bytes per device, or None.
      search_seconds: from ClosedJaxpr to frontier; None on a frontier that was read from a file.
      notes: facts that a reader of the plans should know, such as operators without a rule.
      replan: plans the step again, see `what_if`; None on a frontier that was read from a file.

    >>> import jax, jaxplan
    >>> x = jax.ShapeDtypeStruct((64, 8), "float32")
    >>> frontier = jaxplan.plan(lambda x: x * 2, x, topology="cpu:8")
    >>> frontier.within("1KiB") is frontier.fastest()
    True
    """

    @classmethod
    def from_plans(
        cls,
        plans: Iterable[Plan],
        *,
        references: Mapping[str, Plan] | None = None,
        absent: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
        search_seconds: float | None = None,
        notes: Iterable[str] = (),
    ) -> Frontier:
        """Keep the plans that fit the limit and that no other plan beats; of equals, the first given.

        Raises InfeasibleError when no plan fits.
        """
        plans = tuple(plans)
        fitting = [p for p in plans if memory_limit_bytes is None or p.memory_bytes <= memory_limit_bytes]
        if plans and not fitting and memory_limit_bytes is not None:
            raise infeasible_error(plans, memory_limit_bytes)
        return cls(
            points=tuple(undominated(fitting)),
            references=dict(references or {}),
            absent=dict(absent or {}),
            memory_limit_bytes=memory_limit_bytes,
            search_seconds=search_seconds,
            notes=tuple(notes),
        )

    def _repr_html_(self) -> str:
        from jaxplan.plans._notebook import frontier_html

        return frontier_html(self)

    def what_if(
        self,
        *,
        bandwidth: float | Mapping[str, float] | None = None,
        memory: int | str | None = None,
        batch: int | None = None,
    ) -> Frontier:
        """The frontier of the same step on a machine with other links, with another limit, or for another batch.

        The step is not traced again unless the batch differs.

        Args:
          bandwidth: factor for all links, or for each level by name: ``{"node": 2}``, a network twice as fast.
          memory: limit per device, bytes or ``"80GiB"``.
          batch: number of examples; every argument that holds examples is scaled alike.

        Raises:
          UnsupportedError: the frontier was read from a file.
          ArgumentError: a factor, limit or batch that cannot be.
          InfeasibleError: no plan fits.
        """
        return self._replan("what_if")(bandwidth=bandwidth, memory=memory, batch=batch)

    def advice(self, *, choose: str | int = "fastest") -> tuple[Advice, ...]:
        """What would make a plan faster or leaner, each with its figures, the largest saving first.

        Looked at are padding of dimensions that the devices do not divide, the slowest links, operators without a
        rule, twice the devices, recomputed blocks, micro-batches, the dtype of gradients, and, with
        ``overlap=False``, communication beside compute. The step is planned again for some of them, so this takes
        several times as long as planning it.

        Raises:
          UnsupportedError: the frontier was read from a file.
        """
        replan, chosen = self._replan("advice"), self.choose(choose)
        if chosen.stages:
            raise UnsupportedError(
                "advice() looks at plans of the whole step, and this one runs in stages.\n"
                "  fix: choose a plan without stages, or look at the stages: plan.explain()"
            )
        return replan.advise(chosen, replan)

    def verify(
        self,
        around: str | int = "fastest",
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        progress: Any = None,
    ) -> Frontier:
        """The frontier with a choice, its neighbours and the best reference compiled for the topology, not run.

        Compiled memory and collectives then count in place of predicted ones, as with ``jaxplan.plan(..., verify=)``.

        Args:
          around: the choice, as `choose` takes it.
          cache_dir: a folder to keep compiled programs in.
          progress: as for `jaxplan.plan`.

        Raises:
          UnsupportedError: the frontier was read from a file, or the compiler has no target for the chip.
          MissingExtraError: the compiler is not installed; names the extra.
          AuditError: a plan does not compile.
          InfeasibleError: by the compiler's memory no plan fits.
        """
        from jaxplan.audit import require_compiler
        from jaxplan.core._progress import Progress

        replan = self._replan("verify")
        require_compiler(replan.topology)
        with Progress(progress) as report:
            return replan.verify(self, around, cache_dir=cache_dir, progress=report)

    def _replan(self, method: str) -> Any:
        if self.replan is None:
            raise UnsupportedError(
                f"{method}() needs the step, and this frontier was read from a file.\n"
                "  fix: plan the step again with jaxplan.plan(step, *args, topology=...)"
            )
        return self.replan

    def table(self, *, max_rows: int = 12, width: int | None = None, verbose: bool = False) -> str:
        """Return the frontier as a text table of at most `max_rows` points, the references below it.

        One line a point: time and memory of a step per device; how most of the arithmetic is split (``+2``: other
        operators are split in two other ways); the share of optimizer state and of parameters that a device holds,
        and whether a parameter is gathered per layer or once in a step; the blocks that are recomputed (``*``: but
        for dots). With `verbose`, compute, communication and its hidden part, proofs, and each plan in a sentence.
        """
        from jaxplan.plans._frontier_view import draw_table

        return draw_table(self, max_rows=max_rows, width=width, verbose=verbose)

    def plot(self, path: str | os.PathLike[str], *, choose: str | int = "fastest") -> None:
        """Draw time against memory to a file; its ending names the format (.svg, .pdf, .png).

        The plan that `choose` names is marked, as are leanest, knee and fastest, the references and the memory limit.

        Raises MissingExtraError when matplotlib is missing.
        """
        from jaxplan.plans._plot import draw_plot

        draw_plot(self, path, choose)

    def report(self, path: str | os.PathLike[str], *, choose: str | int = "fastest") -> None:
        """Write one HTML page that needs no network: the frontier to hover and click, and each plan in full.

        Of at most a dozen plans, the one that `choose` names first: layouts and how arrays are cut over the devices,
        memory by part and over the step, time by collective, the most expensive transfers with their source lines,
        compiler rules of the largest buffers, and differences from the nearest reference.

        Raises MissingExtraError when plotly or jinja2 is missing.
        """
        from jaxplan.plans._report import write_report

        write_report(self, path, choose)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; search time is left out, so that equal frontiers give equal files."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "memory_limit_bytes": self.memory_limit_bytes,
            "notes": list(self.notes),
            "points": [plan.to_json() for plan in self.points],
            "references": {name: plan.to_json() for name, plan in self.references.items()},
            "reference_order": list(self.references),  # the file has names in alphabetical order
            "absent": dict(self.absent),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], read_plan: Callable[[Any], Plan]) -> Frontier:
        """Return the frontier that `to_json` gave, each plan through `read_plan`; raises PlanFileError."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise PlanFileError(f"not a frontier file: expected an object with schema={SCHEMA!r}")
        if data.get("version") != SCHEMA_VERSION:
            raise PlanFileError(
                f"the frontier file has schema version {data.get('version')!r}, and this jaxplan reads "
                f"{SCHEMA_VERSION}; plan again, or use the jaxplan that wrote it"
            )
        try:
            points = typed(tuple[dict[str, Any], ...], required(data, "points"), "points")
            references = typed(dict[str, dict[str, Any]], required(data, "references"), "references")
            limit = typed(int | None, required(data, "memory_limit_bytes"), "memory_limit_bytes")
            order = typed(tuple[str, ...], data.get("reference_order", tuple(references)), "reference_order")
            if sorted(order) != sorted(references):
                raise MalformedError(f"reference_order is {order!r}; expected the names of references")
            notes = typed(tuple[str, ...], required(data, "notes"), "notes")
            absent = typed(dict[str, str], data.get("absent", {}), "absent")
        except MalformedError as error:
            raise PlanFileError(_MALFORMED_MSG.format(error=error)) from error
        # outside the two blocks: a fault of the step that plans are bound to is not one of the file
        plans = tuple(map(read_plan, points))
        others = {name: read_plan(references[name]) for name in order}
        try:
            return cls(points=plans, references=others, memory_limit_bytes=limit, notes=notes, absent=absent)
        except ArgumentError as error:
            raise PlanFileError(_MALFORMED_MSG.format(error=error)) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frontier as JSON, byte for byte the same for equal frontiers; `jaxplan.load` reads it.

        Raises SaveError where it cannot be written.
        """
        text = json.dumps(self.to_json(), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
        write_whole(path, text + "\n")
