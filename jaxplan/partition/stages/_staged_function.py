"""The callable that runs a plan in stages: like `jax.jit`, with the plan's placement and donation."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.core._mesh_context import without_mesh
from jaxplan.core._processes import spans_processes
from jaxplan.errors import ArgumentError, UnsupportedError
from jaxplan.frontend import _nnx
from jaxplan.frontend._arguments import argnums
from jaxplan.frontend._backend import Backend
from jaxplan.frontend._call import Call, opened_call
from jaxplan.frontend._static_leaves import release_statics
from jaxplan.frontend._step_options import which
from jaxplan.partition._donation import DonatedBuffers, unaliased
from jaxplan.partition._known_calls import KnownCalls, Results
from jaxplan.partition._meshes import device_mesh
from jaxplan.partition._placement import Placer
from jaxplan.partition.stages._pipeline_run import Pipeline
from jaxplan.partition.stages._staged_like import StagedLike

_PROCESSES_MSG = (
    "a plan in stages runs in one process that sees all of its devices, and these belong to several.\n"
    "  expected: the devices of one host\n"
    "  fix: stages=False, or plan for the devices of one process"
)
_TRACED_MSG = (
    "a plan in stages was called inside of another traced function (jax.jit, jax.grad, jax.lax.scan): it is several "
    "programs, which no other program holds.\n"
    "  fix: call it outside, or plan with stages=False"
)
_BACKEND_MSG = "a plan in stages is lowered by backend='jit' alone, and {backend!r} was asked for"


class StagedFunction:
    """A step in stages bound to devices; its programs are compiled when they first run.

    Attributes:
      plan: the plan that it runs.
      mesh: all devices; those of a stage are ``pipeline.meshes[stage]``.
      calls: the kinds of calls that it serves.
      pipeline: the programs.
    """

    repeated = None
    """No call is recognised as a repetition of the last one: each is dispatched program by program."""

    def __init__(
        self,
        plan: StagedLike,
        devices: Sequence[Any] | None,
        order: Sequence[Any],
        donate_argnums: Sequence[int] | None = None,
        backend: Backend = "jit",
    ) -> None:
        if backend != "jit":
            raise ArgumentError(_BACKEND_MSG.format(backend=backend))
        self.plan: Any = plan
        self.backend = backend
        self.mesh = device_mesh(plan.topology, devices)
        if spans_processes(self.mesh.devices.flat):
            raise UnsupportedError(_PROCESSES_MSG)
        program = plan.require_program().program
        assert program.source is not None
        self._step, self._options = program.source.step, program.source.options
        self._spelling = program.source.spelling
        self.calls = KnownCalls(program, program.source)
        donate = program.donated if donate_argnums is None else self._donated(program, donate_argnums)
        self._donate = [d and bool(program.tensors[t].num_elements) for d, t in zip(donate, program.inputs)]
        self.pipeline = Pipeline(plan, list(self.mesh.devices.flat), self._donate, order)
        shardings = self.pipeline.in_shardings
        self._place = Placer(program.in_paths, shardings)
        tensors = [program.tensors[t] for t in program.inputs]
        local = [(s.shard_shape(t.shape), t.dtype) for s, t in zip(shardings, tensors, strict=True)]
        self._buffers = DonatedBuffers(program.in_paths, self._donate, local)
        self._has_run = False

    def _donated(self, program: Any, donate_argnums: Sequence[int]) -> list[bool]:
        """Per leaf, whether it belongs to one of the arguments."""
        numbers = argnums(donate_argnums, "donate_argnums") or ()
        donated = which(self._options.parameters, numbers, (), option="donate_argnums")
        donated.check_negative(self._spelling[0], "donate_argnums")
        wanted = tuple(f"[{i}]" for i in donated.positions(range(self._spelling[0])))
        wanted += tuple(f"[{name!r}]" for name in donated.names if name in self._spelling[1])
        return [bool(wanted) and path.startswith(wanted) for path in program.in_paths]

    @property
    def num_compilations(self) -> int:
        """1 once it has run: its programs are compiled together."""
        return int(self._has_run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._opened(args, kwargs) as call:
            return self.run(call, self.calls.results_of(call))

    def run(self, call: Call, results_of: Results) -> Any:
        """The results of a call that is open, of a kind that the plan serves.

        Raises:
          UnsupportedError: the call is part of another traced function.
        """
        call.check_alive()
        if any(isinstance(leaf, _compat.Tracer) for leaf in call.leaves):
            raise UnsupportedError(_TRACED_MSG)
        with without_mesh():
            placed = self._place(call.leaves)
            placed = self._buffers.own(call.leaves, placed)
            results = self.pipeline(placed)
            self._buffers.remember(placed, results)
        self._has_run = True
        return call.opened.close(results_of(results))

    def compile(self, call: Call) -> int | None:
        """Nothing is compiled ahead: the memory of the compiled programs is not known before they run."""
        return None

    def lower(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`jax.stages.Lowered` of each program, by ``stage 0 forward`` and the like; they share no arguments."""
        with self._opened(args, kwargs) as call:
            self.calls.results_of(call)
        return self.pipeline.lowered()

    def shard(self, *args: Any, **kwargs: Any) -> Any:
        """Place the arguments as the plan wants them, each on its stage; returns the tuple of arguments."""
        with self._opened(args, kwargs) as call:
            self.calls.results_of(call)
            call.check_alive()
            leaves = unaliased(call.leaves, self._place(call.leaves), range(len(call.leaves)))
            placed, keywords = _nnx.closed(release_statics(jax.tree.unflatten(call.tree, leaves)))
            keywords = {name: keywords.get(name, value) for name, value in call.kwargs.items()}
            return (*call.merge(placed), keywords) if keywords else tuple(call.merge(placed))

    def _opened(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager[Call]:
        args, kwargs = self._options.spelled_as(self._spelling, args, kwargs)
        return opened_call(self._step, self._options, args, kwargs)
