"""Keys that name objects by identity."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from jaxplan.core._interner import ByIdentity, Memo, Watched, distinct


def test_a_memo_keeps_the_objects_that_its_keys_name() -> None:
    """Or the number of a dead object would name the next one at its address."""
    memo, array = Memo(), np.ones(3)
    reference = weakref.ref(array)
    memo[memo.number(array)] = "ones"
    del array
    gc.collect()
    others = [np.ones(3) for _ in range(100)]
    assert reference() is not None and not any(memo.number(other) in memo for other in others)


def test_equal_objects_have_different_numbers() -> None:
    memo, first, second = Memo(), [1], [1]
    assert memo.numbers((first, second, first)) == (memo.number(first), memo.number(second), memo.number(first))
    assert memo.number(first) != memo.number(second) and len(distinct([first, second, first])) == 2


def test_keys_by_identity_are_equal_for_one_object() -> None:
    one, other = [1], [1]
    assert ByIdentity(one, "a") == ByIdentity(one, "b") and ByIdentity(one, "a") != ByIdentity(other, "a")
    assert len({ByIdentity(one, 1), ByIdentity(one, 2), ByIdentity(other, 3)}) == 2


def test_watched_objects_are_not_kept_alive() -> None:
    array = np.ones(3)
    watched, reference = Watched([array]), weakref.ref(array)
    assert array in watched and np.ones(3) not in watched
    del array
    gc.collect()
    assert reference() is None
