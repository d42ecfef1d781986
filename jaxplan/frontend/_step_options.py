"""Which arguments of a step are static and which are donated: by the caller's options, else by the step's own `jit`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxplan.core import _compat
from jaxplan.errors import ArgumentError
from jaxplan.frontend._arguments import argnames, argnums

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Some arguments of a step, by position and by name; where the signature tells, each has both.

    Attributes:
      numbers: positions; negative ones count from the last argument given, as for `jax.jit`.
      names: of those that may be given by keyword.
    """

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def __or__(self, other: Which) -> Which:
        return Which(
            numbers=tuple(dict.fromkeys((*self.numbers, *other.numbers))),
            names=tuple(dict.fromkeys((*self.names, *other.names))),
        )

    def positions(self, args: Sequence[Any]) -> frozenset[int]:
        """Positions among the given arguments; arguments left at their defaults have none."""
        count = len(args)
        return frozenset(i % count for i in self.numbers if -count <= i < count)

    def check_negative(self, count: int, option: str) -> None:
        """Raise ArgumentError for a negative number that so many positional arguments do not have."""
        wrong = [i for i in self.numbers if i < -count]
        if wrong:
            raise ArgumentError(
                f"{option} names argument {wrong[0]}, and the step was given {count} positional arguments; "
                "negative numbers count from the last one given"
            )

    def keywords(self, kwargs: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(name for name in self.names if name in kwargs)

    def after(self, num_bound: int, bound_names: Mapping[str, Any]) -> Which:
        """The same for a step with its first arguments, and some by keyword, already bound."""
        return Which(
            numbers=tuple(i - num_bound for i in self.numbers if i >= num_bound),
            names=tuple(name for name in self.names if name not in bound_names),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How the arguments of a step are to be taken.

    Attributes:
      static: settings: Python values that the step is traced for.
      donated: those whose buffers the step may reuse; None where nobody named any.
      numbers_are_static: whether every Python number is a setting, as for `equinox.filter_jit`.
      parameters: the step's signature, None where it has none.
    """

    static: Which = Which()
    donated: Which | None = None
    numbers_are_static: bool = False
    parameters: inspect.Signature | None = None

    @classmethod
    def of(
        cls,
        step: Callable[..., Any],
        *,
        static_argnums: int | Sequence[int] | None = (),
        static_argnames: str | Sequence[str] | None = (),
        donate_argnums: int | Sequence[int] | None = None,
    ) -> StepOptions:
        """The step's own options, and the caller's besides; a donation by the caller replaces the step's own.

        Raises:
          ArgumentError: a number or name that the step does not have, or an argument both static and donated.
        """
        signature, own = signature_of(step), _own_options(step)
        asked = which(
            signature,
            argnums(static_argnums, "static_argnums") or (),
            argnames(static_argnames, "static_argnames"),
            option="static_argnums",
        )
        static, donated = own.static | asked, own.donated
        numbers = argnums(donate_argnums, "donate_argnums")
        if numbers is not None:
            donated = which(signature, numbers, (), option="donate_argnums")
        return dataclasses.replace(own, static=static, donated=donated, parameters=signature)

    def check_numbers(self, args: Sequence[Any]) -> None:
        """Raise ArgumentError for numbers that do not go with the arguments given."""
        donated = self.donated or Which()
        self.static.check_negative(len(args), "static_argnums")
        donated.check_negative(len(args), "donate_argnums")
        both = sorted(self.static.positions(args) & donated.positions(args))
        if both:
            raise ArgumentError(
                f"arguments {both} are in donate_argnums and in static_argnums; a Python value has no buffer"
            )

    def spelled_as(
        self, spelling: tuple[int, tuple[str, ...]], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The same arguments, each by position or by keyword as in another call of the step.

        Args:
          spelling: number of positional arguments and names of keyword arguments of that call.

        Returns:
          Positional and keyword arguments; defaults are filled in for arguments that only the other call was given.
        """
        num_positional, names = spelling
        if self.parameters is None or (len(args) == num_positional and kwargs.keys() == set(names)):
            return args, kwargs
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError:
            return args, kwargs  # the comparison of arguments names the missing one
        bound.apply_defaults()
        values, positional = dict(bound.arguments), self.positional_names
        if any(p.kind is p.VAR_POSITIONAL for p in self.parameters.parameters.values()):
            return args, kwargs
        given = {**dict(zip(positional, args, strict=False)), **kwargs}
        leading = positional[:num_positional]
        respelled = {name: values.get(name, kwargs.get(name)) for name in names}
        respelled |= {name: value for name, value in given.items() if name not in leading}
        return [values[name] for name in leading], respelled

    @property
    def positional_names(self) -> tuple[str, ...]:
        """Names of the parameters by position."""
        parameters = () if self.parameters is None else self.parameters.parameters.values()
        return tuple(p.name for p in parameters if p.kind in _POSITIONAL)

    @property
    def static_defaults(self) -> Mapping[str, Any]:
        """Values of settings that a call leaves out."""
        parameters = {} if self.parameters is None else self.parameters.parameters
        names = {*self.static.names}
        names |= {name for i, name in enumerate(self.positional_names) if i in self.static.numbers}
        return {
            name: p.default for name, p in parameters.items() if name in names and p.default is not p.empty
        }


def signature_of(step: Callable[..., Any]) -> inspect.Signature | None:
    """The signature, or None where there is none, as of some builtins."""
    try:
        return inspect.signature(step)
    except (TypeError, ValueError):
        return None


def which(
    signature: inspect.Signature | None, numbers: Sequence[int], names: Sequence[str], *, option: str
) -> Which:
    """Arguments by number and name, completed from the signature as `jax.jit` completes them."""
    if signature is None or not (numbers or names):
        return Which(numbers=tuple(numbers), names=tuple(names))
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    count = len(positional)
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    beyond = [i for i in numbers if i >= count and not takes_more]
    if beyond:
        raise ArgumentError(
            f"{option} names argument {beyond[0]}, and the step has {count} positional arguments; "
            "keyword arguments have no number\n"
            f"  expected: a number below {count}, or a name: {', '.join(signature.parameters)}"
        )
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [name for name in names if name not in signature.parameters]
    if unknown and not takes_any:
        raise ArgumentError(
            f"{option.replace('nums', 'names')} names {', '.join(map(repr, unknown))}, which the step does not take\n"
            f"  expected: some of {', '.join(signature.parameters) or 'none: it takes no arguments'}\n"
            "  likely cause: a misspelling, or the step takes it under another name"
        )
    found = {p.name: i for i, p in enumerate(positional) if i in numbers or p.name in names}
    by_keyword = [p.name for p in positional if p.name in found and p.kind is not p.POSITIONAL_ONLY]
    return Which(
        numbers=tuple(dict.fromkeys((*numbers, *found.values()))),
        names=tuple(dict.fromkeys((*names, *by_keyword))),
    )


def _own_options(step: Any) -> StepOptions:
    """The options of a step that is jitted already; none where it is not."""
    if isinstance(step, types.MethodType):
        return _after(_own_options(step.__func__), 1, {})
    if _is_partial(step):
        return _after(_own_options(step.func), len(step.args), step.keywords)
    if _is_filter_jit(step):
        return _filter_jit_options(step)
    options = _compat.jit_options(getattr(step, "jitted_fn", step))  # flax.nnx.jit keeps its jax.jit there
    if options is None:
        method = inspect.getattr_static(type(step), "__call__", None)  # an object with a jitted call
        return StepOptions() if _compat.jit_options(method) is None else _after(_own_options(method), 1, {})
    signature = signature_of(step)
    static = which(signature, options.static_argnums, options.static_argnames, option="static_argnums")
    donated = which(signature, options.donate_argnums, options.donate_argnames, option="donate_argnums")
    return StepOptions(static=static, donated=donated or None)


def _filter_jit_options(step: Any) -> StepOptions:
    """https://docs.kidger.site/equinox/api/transformations/#equinox.filter_jit"""
    signature = signature_of(step)
    parameters = [] if signature is None else list(signature.parameters.values())
    count = sum(p.kind in _POSITIONAL for p in parameters)
    numbers = [i for i in range(count) if (step.donate_rest if i else step.donate_first)]
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and step.donate_rest]
    donated = which(signature, numbers, names, option="donate_argnums")
    return StepOptions(donated=donated or None, numbers_are_static=True)


def _is_filter_jit(step: Any) -> bool:
    return type(step).__module__.startswith("equinox.") and hasattr(step, "donate_rest")


def _is_partial(step: Any) -> bool:
    if isinstance(step, functools.partial):
        return True
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(step, equinox.Partial)


def _after(options: StepOptions, num_bound: int, names: Mapping[str, Any]) -> StepOptions:
    donated = options.donated and options.donated.after(num_bound, names)
    return dataclasses.replace(
        options, static=options.static.after(num_bound, names), donated=donated or None
    )
