"""Objects told apart by identity: the one module that asks for the `id` of an object.

An `id` is free for another object as soon as its own object dies, so a memo keyed by it must keep the object: `Memo`
and `ByIdentity` do; `Watched` and `addresses` are for callers that may not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Memo(dict[Hashable, Any]):
    """A dictionary with keys that name objects by identity; it keeps every object that it has numbered.

    >>> memo, table = Memo(), [1.0, 2.0]
    >>> memo["transposed", memo.number(table)] = "its transpose"
    >>> ("transposed", memo.number(table)) in memo, ("transposed", memo.number([1.0, 2.0])) in memo
    (True, False)
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Any] = {}

    def number(self, value: Any) -> int:
        """The number of an object, which no other object has while the memo lives."""
        number = id(value)
        self._kept[number] = value
        return number

    def numbers(self, values: Sequence[Any]) -> tuple[int, ...]:
        """The number of each object."""
        numbers = tuple(map(id, values))
        self._kept.update(zip(numbers, values))
        return numbers

    def to_find(self, values: Iterable[Any]) -> tuple[int, ...]:
        """The number of each object for a look-up alone: a key that is stored needs `numbers`, which keeps them."""
        return tuple(map(id, values))


class Remembered(Generic[T]):
    """Results of a function for objects told apart by identity; it keeps the objects.

    >>> sizes, table = Remembered(), [1.0, 2.0]
    >>> sizes.of(table, len), sizes.of(table, lambda _: "not asked again")
    (2, 2)
    """

    __slots__ = ("_found", "_kept")

    def __init__(self) -> None:
        self._found: dict[int, T] = {}
        self._kept: list[Any] = []

    def of(self, value: Any, find: Callable[[Any], T]) -> T:
        """The result of ``find`` for an object, computed once."""
        return self.of_all((value,), find)[0]

    def of_all(self, values: Sequence[Any], find: Callable[[Any], T]) -> list[T]:
        """The same of each of many objects."""
        found = self._found
        try:  # without a loop in Python: mostly all are known
            return list(map(found.__getitem__, map(id, values)))
        except KeyError:
            for value in values:
                if id(value) not in found:
                    found[id(value)] = find(value)
                    self._kept.append(value)
            return [found[id(value)] for value in values]


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity:
    """A value as a key, which is equal to keys with the same object alone; for memos with a limit, such as lru_cache.

    Attributes:
      object: decides; kept alive.
      value: carried along.
    """

    object: Any
    value: Any

    def __hash__(self) -> int:
        return id(self.object)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, ByIdentity) and self.object is other.object


class Watched:
    """Objects that are recognised as long as they live, and are not kept alive."""

    __slots__ = ("_references",)

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._references = {id(value): weakref.ref(value) for value in values}

    def __contains__(self, value: object) -> bool:
        reference = self._references.get(id(value))
        return reference is not None and reference() is value


def addresses(values: Iterable[Any]) -> list[int]:
    """A number for each object, its own as long as it lives: for callers that watch the objects by themselves."""
    return [*map(id, values)]


def distinct(values: Iterable[T]) -> list[T]:
    """The objects, each once, in order of first appearance; equal objects are two.

    >>> first, second = [1], [1]
    >>> len(distinct([first, second, first]))
    2
    """
    return list({id(value): value for value in values}.values())
