"""The buffers of a TPU program that count: not those beside the cores, and the gaps between the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxplan.xla._lifetimes import Lifetimes

LONG, SHORT = 500, 3


def _lifetimes(**options: Any) -> Lifetimes:
    """100 bytes that live long, 40 and then 60 that do not."""
    first, last = np.array([0, 10, 20]), np.array([LONG, 10 + SHORT, 20 + SHORT])
    return Lifetimes(
        first=first,
        last=last,
        sizes=np.array([100.0, 40.0, 60.0]),
        labels=("activations", "gradients", "gradients"),
        resident={"parameters": 7.0},
        length=LONG + 2,
        home={},
        copies={},
        **options,
    )


@pytest.mark.parametrize(
    ("options", "activations", "gradients", "gaps"),
    [
        ({}, 100, 60, 0),
        ({"on_chip": 50.0}, 100, 10, 0),
        ({"on_chip": 80.0}, 100, 0, 0),  # long-lived buffers are in main memory all the same
        ({"has_gaps": True}, 100, 60, 4),  # 3 % of 160, whole bytes
        ({"on_chip": 80.0, "has_gaps": True}, 100, 0, 3),
    ],
)
def test_what_lives_shortly_is_beside_the_cores_and_heaps_have_gaps(options, activations, gradients, gaps) -> None:
    most, parts = _lifetimes(**options).peak()
    found = [parts.get(label, 0) for label in ("parameters", "activations", "gradients", "gaps in the heap")]
    assert found == [7, activations, gradients, gaps]
    assert most == sum(found)


def test_the_curve_is_of_main_memory() -> None:
    whole, left = _lifetimes().curve(), _lifetimes(on_chip=50.0).curve()
    assert whole[[5, 11, 21, 30]].tolist() == [100, 140, 160, 100]
    assert left[[5, 11, 21, 30]].tolist() == [100, 100, 110, 100]
