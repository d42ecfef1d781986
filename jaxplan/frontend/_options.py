"""The keyword options of the ways in, in one place: a new one is a field of `Options` and a type in `Keywords`.

Which functions take it is a set of names (`PLAN`, `PARTS`, ...); signatures and the lists of arguments in docstrings
are made of that.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, TypedDict, TypeVar

from jaxplan.core._units import parse_limit
from jaxplan.errors import ArgumentError
from jaxplan.frontend._arguments import argnames, argnums
from jaxplan.frontend._backend import Backend, check_backend
from jaxplan.frontend._pins import parse_pins
from jaxplan.mesh import AxesNames, Topology

MAX_PLANS = 32
"""Plans that a decorated step keeps by default; a plan holds its program, analysed and compiled."""
_WIDTH = 114
F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """Options of one call, checked as far as they can be without the step and the machine.

    >>> Options(memory="1GiB").memory_limit_bytes
    1073741824

    Raises:
      ArgumentError: an option has a value that it cannot have.
    """

    topology: str | Topology | None = field(
        default=None,
        metadata={"doc": 'such as ``"h100:2x8"``; default: the devices present.'},
    )
    memory: int | str | None = field(
        default=None,
        metadata={
            "doc": 'limit per device, bytes or ``"40GiB"``; default: the chip\'s capacity times its usable '
            "fraction."
        },
    )
    solver: str = field(
        default="auto",
        metadata={
            "doc": 'one of `jaxplan.solvers.SOLVERS`: ``"auto"``, or an algorithm as published '
            "(docs/solvers.md)."
        },
    )
    donate_argnums: int | Sequence[int] | None = field(
        default=None,
        metadata={
            "doc": "arguments whose buffers the step may reuse; default: those that its own `jax.jit` donates, else "
            "arguments that it returns updated (docs/state.md)."
        },
    )
    static_argnums: int | Sequence[int] = field(
        default=(),
        metadata={
            "doc": "arguments that are Python values, by number, as `jax.jit` takes them. A step that is jitted "
            "already keeps its own."
        },
    )
    static_argnames: str | Sequence[str] = field(
        default=(),
        metadata={"doc": "the same by name."},
    )
    pins: Any = field(
        default=None,
        metadata={
            "doc": "parts of the plan that are fixed: paths, hints, named dimensions or families "
            "(docs/steering.md)."
        },
    )
    axes: AxesNames | None = field(
        default=None,
        metadata={
            "doc": "names of mesh axes that pins speak of: sizes, outermost first, such as ``{'data': 4, "
            "'tensor': 2}``, or groups of axes of the machine, such as ``{'data': 'node'}``."
        },
    )
    references: Mapping[str, Any] | None = field(
        default=None,
        metadata={
            "doc": "strategies of your own by name, each the shardings of the arguments: trees of "
            "`NamedSharding`."
        },
    )
    microbatches: bool | int | None = field(
        default=None,
        metadata={
            "doc": "slices in which the batch is worked through, gradients added up (docs/microbatches.md): a number; "
            "True: plans with some are looked for; False: none; default: where no plan fits otherwise, or the memory "
            "limit costs a quarter of the time."
        },
    )
    offload: bool | None = field(
        default=None,
        metadata={
            "doc": "whether optimizer state, parameters and activations may live in the memory of the host "
            "(docs/offload.md): True looks for plans with some there; False: none; default: where no plan fits "
            "otherwise."
        },
    )
    stages: bool | int | None = field(
        default=None,
        metadata={
            "doc": "parts of the step on devices of their own, in a pipeline (docs/stages.md): a number of them; True: "
            "plans with some are looked for; False: none; default: where no plan fits otherwise."
        },
    )
    progress: Any = field(
        default=None,
        metadata={"doc": "True, False, None (shown on a terminal only) or a function of (stage, fraction)."},
    )
    remat: bool | None = field(
        default=None,
        metadata={
            "doc": "whether plans may compute blocks of the forward pass again in the backward pass; default: where "
            "memory is short (docs/remat.md)."
        },
    )
    overlap: bool = field(
        default=True,
        metadata={
            "doc": "True ranks plans by simulated times, communication beside compute (docs/prediction.md); False by "
            "the sum of both, whose optimum is proven."
        },
    )
    verify: bool | str = field(
        default="auto",
        metadata={
            "doc": "True compiles the fastest plan that fits, its neighbours and the best reference without their "
            "devices; compiled memory and collectives then count instead of predicted ones (docs/audit.md). "
            'The name of another choice, such as ``"knee"``, does so around that one. Default: ``"auto"``, which does '
            "so only where the limit lies within the error of the choice's predicted memory "
            "(`Plan.memory_interval_bytes`), the compiler is installed, the devices are not here, and there is no "
            "``time_limit``; False never does."
        },
    )
    cache_dir: str | os.PathLike[str] | None = field(
        default=None,
        metadata={
            "doc": "with ``verify``, a folder to keep compiled programs in; default: ``programs`` in the folder of "
            "``plan_cache``, if there is one."
        },
    )
    time_limit: float | None = field(
        default=None,
        metadata={
            "doc": "seconds after which the search ends with the best plans so far, and says so; the reference "
            "strategies are always priced (docs/caching.md). Default: none."
        },
    )
    plan_cache: str | os.PathLike[str] | bool | None = field(
        default=None,
        metadata={
            "doc": "a folder to keep searches in, so that the same step is planned in the time of its trace the next "
            "time (docs/caching.md); default: that of the environment variable ``JAXPLAN_CACHE_DIR``, if it is set; "
            "False: none."
        },
    )
    choose: str | int = field(
        default="fastest",
        metadata={
            "doc": 'the plan that runs: ``"fastest"``, ``"knee"``, ``"leanest"``, the name of a reference strategy '
            "(docs/strategies.md) or an index of the frontier."
        },
    )
    backend: Backend = field(
        default="jit",
        metadata={
            "doc": 'how the plan is lowered: ``"jit"`` (sharding constraints) or ``"shard_map"`` (one manual program, '
            "docs/lowering.md)."
        },
    )
    plan: Any = field(
        default=None,
        metadata={
            "doc": "a plan, or the file of one or of a frontier: it runs, checked against the step, and nothing is "
            "searched. For a batch of another size the step is planned anew, with the layout that the plan gives the "
            "state; other differences are an error (docs/training.md)."
        },
    )
    like: Any = field(
        default=None,
        metadata={
            "doc": "another decorated step, or a plan: parameters and state that both have are laid out as there, so "
            "that a call moves none of them."
        },
    )
    keep_layout: bool = field(
        default=True,
        metadata={
            "doc": "whether a new kind of arguments, such as another batch size, keeps the layout of the state; False "
            "plans it anew, and the state moves at the next call."
        },
    )
    kept: Sequence[Any] = ()  # shardings of arguments that the search keeps: of one entry point, no public option
    max_plans: int | None = field(
        default=MAX_PLANS,
        metadata={
            "doc": "plans that are kept, one for each kind of arguments, the least recently used forgotten first; "
            "None keeps all."
        },
    )

    memory_limit_bytes: int | None = None
    """The limit that ``memory`` stands for, bytes per device; on one machine (`on`) never None."""

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        if self.memory is not None and self.memory_limit_bytes is None:
            put("memory_limit_bytes", parse_limit(self.memory))
        put("donate_argnums", argnums(self.donate_argnums, "donate_argnums"))
        put("static_argnums", argnums(self.static_argnums, "static_argnums") or ())
        put("static_argnames", argnames(self.static_argnames, "static_argnames"))
        put("pins", parse_pins(self.pins))
        if not isinstance(self.overlap, bool):
            raise ArgumentError(
                f"overlap is {self.overlap!r}; expected True (times with communication beside compute) or False (their "
                "sum)"
            )
        put("microbatches", _microbatches(self.microbatches))
        put("stages", _stages(self.stages))
        check_backend(self.backend)
        if self.offload is not None and not isinstance(self.offload, bool):
            raise ArgumentError(
                f"offload is {self.offload!r}; expected True (look for plans with state on the host), False (none), or "
                "None (where no plan fits otherwise)"
            )
        if not isinstance(self.keep_layout, bool):
            raise ArgumentError(f"keep_layout is {self.keep_layout!r}; expected True or False")
        if self.time_limit is not None:
            put("time_limit", _seconds(self.time_limit))
        if not (self.plan_cache is None or self.plan_cache is False or isinstance(self.plan_cache, str | os.PathLike)):
            raise ArgumentError(
                f"plan_cache is {self.plan_cache!r}; expected a folder, False (keep none), or None (the folder that "
                "JAXPLAN_CACHE_DIR names)"
            )
        if not isinstance(self.solver, str):
            raise ArgumentError(
                f"solver is {self.solver!r}; expected a name, one of jaxplan.solvers.SOLVERS, such as 'auto'"
            )
        if self.remat is not None and not isinstance(self.remat, bool):
            raise ArgumentError(
                f"remat is {self.remat!r}; expected True (look for plans that compute blocks of the forward pass "
                "again), False, or None (where memory is short)"
            )

    def on(self, topology: Topology) -> Options:
        """The same for one machine, with its limit as the default."""
        limit = topology.memory_limit_bytes if self.memory_limit_bytes is None else self.memory_limit_bytes
        return dataclasses.replace(self, topology=topology, memory_limit_bytes=limit)

    @property
    def trace_arguments(self) -> dict[str, Any]:
        """Those that a trace depends on."""
        return {name: getattr(self, name) for name in sorted(TRACE)}


def _microbatches(value: Any) -> bool | int | None:
    """The option, checked: None (where nothing fits otherwise), False (never), True (look), or a number."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value >= 1:
        return value if value > 1 else False
    raise ArgumentError(
        f"microbatches is {value!r}; expected a number of slices of the batch, True (look for plans with some), False "
        "(none), or None (where no plan fits otherwise, or the memory limit costs time)"
    )


def _stages(value: Any) -> bool | int | None:
    """The option, checked: None (where nothing fits otherwise), False (never), True (look), or a number."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value >= 1:
        return value if value > 1 else False
    raise ArgumentError(
        f"stages is {value!r}; expected a number of stages, True (look for plans with some), False (none), or None "
        "(where no plan fits otherwise)"
    )


def _seconds(value: Any) -> float:
    """The option ``time_limit``, checked."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value < math.inf:
        return float(value)
    raise ArgumentError(
        f"time_limit is {value!r}; expected a positive number of seconds, or None for a search without limit"
    )


class Keywords(TypedDict, total=False):
    """The same for type checkers."""

    topology: str | Topology | None
    memory: int | str | None
    solver: str
    donate_argnums: int | Sequence[int] | None
    static_argnums: int | Sequence[int]
    static_argnames: str | Sequence[str]
    pins: Any
    axes: AxesNames | None
    references: Mapping[str, Any] | None
    microbatches: bool | int | None
    offload: bool | None
    stages: bool | int | None
    progress: Any
    remat: bool | None
    overlap: bool
    verify: bool | str
    cache_dir: str | os.PathLike[str] | None
    time_limit: float | None
    plan_cache: str | os.PathLike[str] | bool | None
    choose: str | int
    max_plans: int | None
    backend: Backend
    plan: Any
    like: Any
    keep_layout: bool


_FIELDS = {option.name: option for option in dataclasses.fields(Options) if option.metadata}
ALL = frozenset(_FIELDS)
TRACE = frozenset({"donate_argnums", "static_argnums", "static_argnames"})
PLAN = ALL - {"backend", "choose", "max_plans", "plan", "like", "keep_layout"}
"""Options of `jaxplan.plan`."""
PARTS = PLAN - {"verify", "cache_dir"}
"""Options where a step is planned on several machines."""
TOGETHER = frozenset(
    ["topology", "memory", "solver", "pins", "axes", "progress", "overlap", "remat", "microbatches", "offload"]
)
"""Options where several steps are planned together."""


def taken(keywords: Mapping[str, Any], names: Collection[str]) -> tuple[Options, dict[str, Any]]:
    """The options among the keywords of a call, and the rest, which are the step's."""
    options = Options(**{name: value for name, value in keywords.items() if name in names})
    return options, {name: value for name, value in keywords.items() if name not in names}


def only(keywords: Mapping[str, Any], names: Collection[str], entry: str) -> Options:
    """The options of a call that takes no others.

    Raises:
      ArgumentError: there are others; names those that there are.
    """
    unknown = sorted(set(keywords) - set(names))
    if unknown:
        raise ArgumentError(
            f"{entry} was given {', '.join(unknown)}; expected options are {', '.join(sorted(names))}"
        )
    return Options(**keywords)


def takes_options(names: Collection[str]) -> Callable[[F], F]:
    """Give a function that takes options as ``**keywords`` their signature, and ``{options}`` in its docstring."""

    def document(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        rest = [p for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
            for name, option in _FIELDS.items()
            if name in names
        ]
        # Where the step's own keywords are taken too, ``**keywords`` stands for them.
        kept = [p for p in rest if p.name == "keywords"]
        function.__signature__ = signature.replace(parameters=[*own, *options, *kept])  # pyright: ignore
        if function.__doc__:
            function.__doc__ = function.__doc__.replace("{options}", _listed(names))
        return function

    return document


def _listed(names: Collection[str]) -> str:
    lines = []
    for name, option in _FIELDS.items():
        if name in names:
            text = f"{name}: {option.metadata['doc']}"
            lines += textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False)
    return "\n      ".join(lines)
