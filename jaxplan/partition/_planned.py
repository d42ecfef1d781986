"""The callable that runs a plan: like `jax.jit`, with the plan's shardings and donation."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxplan.core import _compat
from jaxplan.core._mesh_context import explicit_mesh, under
from jaxplan.core._processes import spans_processes
from jaxplan.errors import PlanMismatchError
from jaxplan.frontend import _nnx
from jaxplan.frontend._arguments import argnums, step_name
from jaxplan.frontend._backend import Backend
from jaxplan.frontend._call import Call, opened_call
from jaxplan.frontend._static_leaves import release_statics
from jaxplan.frontend._step_options import which
from jaxplan.ir import Tensor
from jaxplan.partition import _find_nan
from jaxplan.partition._compiler_options import compiler_options
from jaxplan.partition._donation import DonatedBuffers, unaliased
from jaxplan.partition._handed_back import all_results, computed, handed_back
from jaxplan.partition._host_memory import (
    check_donated,
    check_host_bytes,
    for_host,
    in_shardings,
    out_shardings,
)
from jaxplan.partition._known_calls import KnownCalls, Results
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition._nested import nested_program, typed_by
from jaxplan.partition._placement import Placer
from jaxplan.partition._plan_like import PlanLike
from jaxplan.partition._repeated_call import RepeatedCall, repeated_call
from jaxplan.partition._run import run_program
from jaxplan.partition._same_everywhere import check_same_program, compiled_everywhere
from jaxplan.partition._steps import Executor
from jaxplan.partition._verified import Verified
from jaxplan.partition.manual._executor import ManualExecutor
from jaxplan.partition.manual._options import barrier_options
from jaxplan.partition.manual._program import run_manually
from jaxplan.xla import Target


def jit_flat(
    plan: PlanLike,
    mesh: Any,
    donate: Sequence[bool],
    compiler_options: Mapping[str, str] | None = None,
    *,
    keep_unused: bool = False,
    backend: Backend = "jit",
    on_host: bool = True,
) -> Any:
    """`jax.jit` of the planned program over flat leaves, without the results that are `handed_back`.

    Leaves that it does not read are left out of the executable unless ``keep_unused``. ``on_host=False``: all live on
    the devices, also those that the plan keeps on the host.
    """
    handed = handed_back(plan, donate)
    return jax.jit(
        planned_program(plan, mesh, handed, backend=backend, on_host=on_host),
        in_shardings=tuple(in_shardings(plan, mesh, on_host=on_host)),
        out_shardings=computed(out_shardings(plan, mesh, on_host=on_host), handed),
        donate_argnums=tuple(i for i, d in enumerate(donate) if d),
        compiler_options=dict(compiler_options) if compiler_options else None,
        keep_unused=keep_unused,
    )


def planned_program(
    plan: PlanLike, mesh: Any, handed: Mapping[int, int], *, backend: Backend = "jit", on_host: bool = True
) -> Callable[..., tuple[Any, ...]]:
    """The planned program as a function of flat leaves, without the results that are ``handed`` back."""
    target = Target.of(plan.topology.chip, plan.topology.num_devices)
    lowered = LoweredProgram(plan.require_program(), plan.lowering, target, plan.output_shardings)
    offload = plan.offload if on_host else None
    kind = ManualExecutor if backend == "shard_map" else Executor
    executor = kind(mesh, plan.topology.axes, tiled=target.tiles_arrays, ordered=target.reorders_after_all_to_all)

    def planned_step(*leaves: Any) -> tuple[Any, ...]:
        if isinstance(executor, ManualExecutor):
            results = run_manually(lowered, executor, leaves, handed, offload)
        else:
            results = computed(run_program(lowered, executor, leaves, offload), handed)
        return for_host(results, computed(range(len(plan.output_shardings)), handed), offload)

    return planned_step


class PlannedFunction:
    """A step bound to devices; compiled at the first call.

    Inside another traced function it becomes part of that function's program, without donation.

    Attributes:
      plan: the plan that it runs; once compiled, with the memory of the compiled program.
      mesh: the devices.
      backend: how it is lowered.
      calls: the kinds of calls that it serves.
    """

    def __init__(
        self,
        plan: PlanLike,
        mesh: Mesh,
        donate_argnums: Sequence[int] | None = None,
        backend: Backend = "jit",
    ) -> None:
        self.plan: Any = plan  # of the caller's own type
        self.mesh = mesh
        self.backend: Backend = backend
        self._graph = plan.require_program()
        program = self._graph.program
        traced = (self._graph.traced or self._graph).program
        if traced.source is None:
            raise PlanMismatchError(
                "the plan's program was not traced from a step, and has nothing to be called as"
            )
        source = traced.source
        self._step, self._options, self._spelling = source.step, source.options, source.spelling
        self.calls = KnownCalls(traced, source)
        donate = program.donated if donate_argnums is None else self._donated(donate_argnums)
        # An empty array has no memory to reuse, and no address that would tell it from another one.
        self._donate = [d and bool(tensor.num_elements) for d, tensor in zip(donate, self._inputs(), strict=True)]
        check_donated(plan.offload, program, self._donate)
        self._jitted = jit_flat(plan, mesh, self._donate, self._compiler_options(), backend=backend)
        self._handed = handed_back(plan, self._donate)
        self._handed_undonated = handed_back(plan, [False] * len(self._donate))
        shardings = in_shardings(plan, mesh)
        self._place = Placer(program.in_paths, shardings)
        inputs = zip(shardings, self._inputs(), strict=True)
        local_types = [(sharding.shard_shape(tensor.shape), tensor.dtype) for sharding, tensor in inputs]
        self._buffers = DonatedBuffers(program.in_paths, self._donate, local_types)
        self._lock = threading.Lock()
        self._last_results: tuple[weakref.ref[Any], ...] = ()
        self.repeated: RepeatedCall | None = None
        self._compiled: Any = None
        self._nested: Any = None
        self._checked: Any = None

    def _inputs(self) -> list[Tensor]:
        program = self._graph.program
        return [program.tensors[t] for t in program.inputs]

    def _compiler_options(self) -> dict[str, str]:
        """Limits for combined collectives, and what keeps barriers in a program of pieces."""
        platform = self.mesh.devices.flat[0].platform
        options = compiler_options(self.plan, platform)
        return options | barrier_options(self.plan, platform) if self.backend == "shard_map" else options

    def _donated(self, donate_argnums: Sequence[int]) -> list[bool]:
        """Per leaf, whether it belongs to one of the arguments."""
        program = self._graph.program
        num_given = self._spelling[0]
        donated = which(
            self._options.parameters,
            argnums(donate_argnums, "donate_argnums") or (),
            (),
            option="donate_argnums",
        )
        donated.check_negative(num_given, "donate_argnums")
        wanted = tuple(f"[{i}]" for i in donated.positions(range(num_given)))
        wanted += tuple(f"[{name!r}]" for name in donated.names if name in self._spelling[1])
        return [bool(wanted) and path.startswith(wanted) for path in program.in_paths]

    @property
    def num_compilations(self) -> int:
        """How many programs were compiled: none while it was only called inside other traced functions."""
        return (self._compiled is not None) + (self._checked is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        repeated = self.repeated
        if repeated is not None and (results := repeated(args, kwargs)) is not NotImplemented:
            return results
        with self._opened(args, kwargs) as call:
            return self.run(call, self.calls.results_of(call))

    def run(self, call: Call, results_of: Results) -> Any:
        """The results of a call that is open, of a kind that the plan serves."""
        call.check_alive()
        leaves = call.leaves
        placed = leaves if _any_traced(leaves) else self._place(leaves)
        if _any_traced(placed):
            results = self._nested_call(leaves)
        elif _find_nan.is_checking():
            results = self._checked_call(placed)
        else:
            placed = unaliased(leaves, self._buffers.own(leaves, placed), self._handed.values())
            results = self._compiled_call(placed)
            self._learn(call, placed, results, results_of)
        return call.opened.close(results_of(results))

    def _learn(self, call: Call, placed: Sequence[Any], results: Sequence[Any], results_of: Results) -> None:
        """Recognise calls like this one, where the caller passes on the last results."""
        last, self._last_results = self._last_results, tuple(map(weakref.ref, results))
        self.repeated = None
        is_plain = not self._handed and not results_of.has_statics
        if last and is_plain and all(map(operator.is_, placed, call.leaves)):
            self.repeated = repeated_call(
                call,
                results,
                last,
                compiled=self._compiled,
                out_tree=results_of.tree,
                donated=self._donate,
                watched=self._buffers.watched,
            )

    def _opened(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager[Call]:
        args, kwargs = self._options.spelled_as(self._spelling, args, kwargs)
        return opened_call(self._step, self._options, args, kwargs)

    def compile(self, call: Call) -> int | None:
        """Compile the program that runs calls of this kind, unless that was done.

        Returns its peak memory, bytes per device, which `plan` then has as well; None where the compiler does not say.
        """
        if self._compiled is None:
            shardings = self._place.shardings
            self._compile([self._abstract(x, s) for x, s in zip(call.leaves, shardings, strict=True)])
        return None if self.plan.verified is None else self.plan.verified.memory_bytes

    def _compile(self, leaves: Sequence[Any]) -> None:
        with self._lock:  # of two threads that call first at once, one compiles
            if self._compiled is None:
                with under(self.mesh):
                    lowered = self._jitted.lower(*leaves)
                compiled, num_bytes = self._compiled_everywhere(lowered)
                check_host_bytes(self.plan.prediction.host_bytes, compiled, self.mesh.devices.flat[0].platform)
                if num_bytes:
                    verified = self.plan.verified or Verified(memory_bytes=num_bytes)
                    verified = dataclasses.replace(verified, memory_bytes=num_bytes)
                    self.plan = dataclasses.replace(self.plan, verified=verified)
                self._compiled = compiled

    def _compiled_everywhere(self, lowered: Any) -> tuple[Any, int | None]:
        """The compiled program with its memory; where several processes run it, the same one in all of them."""
        if not spans_processes(self.mesh.devices.flat):
            compiled = lowered.compile()
            return compiled, compiled_bytes(compiled)
        name = step_name(self._step)
        check_same_program(name, lowered)
        return compiled_everywhere(name, lowered.compile, compiled_bytes)

    def _compiled_call(self, leaves: Sequence[Any]) -> Any:
        if self._compiled is None:
            self._compile(leaves)
        assert self._compiled is not None
        results = self._compiled(*leaves)
        self._buffers.remember(leaves, results)
        return all_results(results, self._handed, leaves)

    def _nested_call(self, leaves: Sequence[Any]) -> Any:
        """Inside another trace: the planned program is staged into it."""
        if self._nested is None:
            self._nested = nested_program(self._undonated(on_host=False))
        mesh = explicit_mesh(leaves)
        if mesh is None:
            results = self._nested(*leaves)
        else:
            results = typed_by(mesh, self._nested, self.mesh, self._succeeded())(*leaves)
        return all_results(results, self._handed_undonated, leaves)

    def _succeeded(self) -> tuple[int | None, ...]:
        """For each result of the nested program, the argument that it succeeds, if any."""
        program = self._graph.program
        places = computed(range(len(program.outputs)), self._handed_undonated)
        return tuple(program.aliases.get(o) for o in places)

    def _checked_call(self, leaves: Sequence[Any]) -> Any:
        """Under `jax_debug_nans`: nothing is donated, as under `jax.jit`, so that the error can be traced back."""
        if self._checked is None:
            with self._lock:
                if self._checked is None:
                    with under(self.mesh):
                        lowered = self._undonated().lower(*leaves)
                    self._checked = lowered.compile()
        with _find_nan.unchecked():
            results = all_results(self._checked(*leaves), self._handed_undonated, leaves)
        _find_nan.check_results(self._graph.program, leaves, results)
        return results

    def _undonated(self, *, on_host: bool = True) -> Any:
        donate = [False] * len(self._donate)
        return jit_flat(self.plan, self.mesh, donate, backend=self.backend, on_host=on_host)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Lowered` over flat leaves; arguments may be `jax.ShapeDtypeStruct`.

        Results that are arguments unchanged, and not donated, are not among its outputs: a call returns the arguments.
        """
        with self._opened(args, kwargs) as call:
            self.calls.results_of(call)
            call.check_alive()
            leaves = call.leaves
        with under(self.mesh):
            return self._jitted.lower(
                *[self._abstract(x, s) for x, s in zip(leaves, self._place.shardings, strict=True)]
            )

    def shard(self, *args: Any, **kwargs: Any) -> Any:
        """Place the arguments as the plan wants them; returns the tuple of arguments, NNX objects copied."""
        with self._opened(args, kwargs) as call:
            self.calls.results_of(call)
            call.check_alive()
            leaves = unaliased(call.leaves, self._place(call.leaves), range(len(call.leaves)))
            placed, keywords = _nnx.closed(release_statics(jax.tree.unflatten(call.tree, leaves)))
            keywords = {name: keywords.get(name, value) for name, value in call.kwargs.items()}
            return (*call.merge(placed), keywords) if keywords else tuple(call.merge(placed))

    @staticmethod
    def _abstract(leaf: Any, sharding: NamedSharding) -> Any:
        aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False)
        )


def compiled_bytes(compiled: Any) -> int | None:
    """Peak bytes per device of a compiled program: arguments + outputs - aliased + temporaries; None where unknown."""
    try:
        stats = compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):  # a platform that has no such analysis
        return None
    if stats is None:
        return None
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    return arguments + outputs - stats.alias_size_in_bytes + stats.temp_size_in_bytes


def runs_as_planned(call: Call) -> bool:
    """Whether a call runs the compiled program: neither inside another traced function, nor under `jax_debug_nans`."""
    return not (_any_traced(call.leaves) or _find_nan.is_checking())


def _any_traced(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, _compat.Tracer) for leaf in leaves)
