"""Every error that jaxplan raises on purpose: the given value, the expected one, and the fix."""

from __future__ import annotations

from collections.abc import Mapping


class JaxplanError(Exception):
    """Base of all errors of jaxplan: catch this one to catch them all.

    >>> import jaxplan
    >>> try:
    ...     jaxplan.Topology.parse("h1000:8")
    ... except jaxplan.JaxplanError as error:
    ...     print(type(error).__name__)
    TopologyError
    """


class ArgumentError(JaxplanError, ValueError):
    """An argument of a public function has a value that it cannot have.

    >>> import jaxplan
    >>> jaxplan.Split(0)
    Traceback (most recent call last):
    jaxplan.errors.ArgumentError: Split(0): expected the number of parts, an integer of at least 1
    """


class TopologyError(JaxplanError, ValueError):
    """A topology string, file or device list does not describe a machine that jaxplan knows.

    >>> import jaxplan
    >>> jaxplan.Topology.parse("h200")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.TopologyError: cannot read topology 'h200': not of the form below.
    ...
    """


class ProfileError(JaxplanError, ValueError):
    """A table of measurements cannot be read, or does not describe the machine that it is used for.

    >>> import jaxplan
    >>> jaxplan.Topology.parse("cpu:2").with_profile("no_such_table.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.ProfileError: ...no_such_table.json...
    """


class TraceError(JaxplanError):
    """The step could not be traced to a jaxpr on abstract values.

    >>> import jax, jaxplan
    >>> jaxplan.trace(lambda x: float(x), jax.ShapeDtypeStruct((), "float32"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.TraceError: ...
    """


class RuleError(JaxplanError, ValueError):
    """An operator rule is malformed, or disagrees with the operator that it was applied to.

    >>> import jaxplan
    >>> jaxplan.register_rule()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.RuleError: ...
    """


class ProblemError(JaxplanError, ValueError):
    """The arrays of a `jaxplan.solvers.Problem` do not fit together, or no solver of that name exists.

    >>> from jaxplan.solvers import Problem, solve
    >>> solve(Problem(time=[[1.0, 2.0]], edges=[]), solver="simplex")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.ProblemError: ...'simplex'...
    """


class InfeasibleError(JaxplanError):
    """No plan fits the memory limit.

    Attributes:
      smallest_memory_bytes: bytes per device of the leanest plan there is, or None if there is none at all.
      memory_parts: part name -> bytes of that memory.

    >>> import jax, jaxplan
    >>> x = jax.ShapeDtypeStruct((1024, 1024), "float32")  # 4 MiB, and as much for the result
    >>> try:
    ...     jaxplan.plan(lambda x: x * 2, x, topology="cpu:1", memory="1MiB")
    ... except jaxplan.InfeasibleError as error:
    ...     print(error.smallest_memory_bytes / 2**20)
    8.0
    """

    def __init__(
        self,
        message: str,
        *,
        smallest_memory_bytes: int | None = None,
        memory_parts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.smallest_memory_bytes = smallest_memory_bytes
        self.memory_parts = dict(memory_parts or {})


class PlanMismatchError(JaxplanError):
    """A plan was given a step, arguments or devices other than those it was made for.

    >>> import jax, jaxplan
    >>> plan = jaxplan.plan(lambda x: x * 2, jax.ShapeDtypeStruct((8, 8), "float32"), topology="cpu:8").fastest()
    >>> plan.mesh(jax.devices()[:1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.PlanMismatchError: ...
    """


class PlanFileError(JaxplanError, ValueError):
    """A plan or frontier file cannot be read: not JSON, another schema version, or a missing field.

    >>> import jaxplan
    >>> jaxplan.Plan.from_json({"schema": "jaxplan.plan"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.PlanFileError: ...
    """


class ProcessError(JaxplanError):
    """The processes of one run do not call the same program, or one of them does not come; raised in all of them.

    >>> import jaxplan
    >>> issubclass(jaxplan.ProcessError, jaxplan.JaxplanError)  # ends a run that would wait for ever
    True
    """


class SaveError(JaxplanError, OSError):
    """A file could not be written; the one that was there is as it was. `errno` is that of the operating system.

    >>> import jaxplan
    >>> jaxplan.Topology.parse("cpu:2").save("no/such/folder/cpu.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.SaveError: ...
    """


class AuditError(JaxplanError):
    """The compiled program differs from the plan, or it could not be compiled at all.

    >>> import jaxplan
    >>> from jaxplan.audit import compile_exported
    >>> compile_exported(b"no program", jaxplan.Topology.parse("cpu:1"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.AuditError: ...
    """


class UnsupportedError(JaxplanError, NotImplementedError):
    """Something that jaxplan does not do yet was asked for by name.

    >>> import jax, jaxplan
    >>> plan = jaxplan.plan(lambda x: x * 2, jax.ShapeDtypeStruct((8, 8), "float32"), topology="cpu:8").fastest()
    >>> jaxplan.Frontier.from_plans([plan]).what_if(memory="1GiB")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxplan.errors.UnsupportedError: what_if() needs the step, ...
    """


class MissingExtraError(JaxplanError, ImportError):
    """An optional dependency is missing; the message names the extra that brings it.

    >>> import jaxplan
    >>> issubclass(jaxplan.MissingExtraError, ImportError)  # caught where a missing package is
    True
    """
