"""Every error that jaxplan raises on purpose: the given value, the expected one, and the fix."""

from __future__ import annotations

from collections.abc import Mapping


class JaxplanError(Exception):
    """Base of all errors of jaxplan: catch this one to catch them all."""


class ArgumentError(JaxplanError, ValueError):
    """An argument of a public function has a value that it cannot have."""


class TopologyError(JaxplanError, ValueError):
    """A topology string, file or device list does not describe a machine that jaxplan knows."""


class ProfileError(JaxplanError, ValueError):
    """A table of measurements cannot be read, or does not describe the machine that it is used for."""


class TraceError(JaxplanError):
    """The step could not be traced to a jaxpr on abstract values."""


class RuleError(JaxplanError, ValueError):
    """An operator rule is malformed, or disagrees with the operator that it was applied to."""


class ProblemError(JaxplanError, ValueError):
    """The arrays of a `jaxplan.solvers.Problem` do not fit together, or no solver of that name exists."""


class InfeasibleError(JaxplanError):
    """No plan fits the memory limit.

    Attributes:
      smallest_memory_bytes: bytes per device of the leanest plan there is, or None if there is none at all.
      memory_parts: part name -> bytes of that memory.
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
    """A plan was given a step, arguments or devices other than those it was made for."""


class PlanFileError(JaxplanError, ValueError):
    """A plan or frontier file cannot be read: not JSON, another schema version, or a missing field."""


class SaveError(JaxplanError, OSError):
    """A file could not be written; the one that was there is as it was. `errno` is that of the operating system."""


class AuditError(JaxplanError):
    """The compiled program differs from the plan, or it could not be compiled at all."""


class UnsupportedError(JaxplanError, NotImplementedError):
    """Something that jaxplan does not do yet was asked for by name."""


class MissingExtraError(JaxplanError, ImportError):
    """An optional dependency is missing; the message names the extra that brings it."""
