"""Choosing plans to run, and the statistics of their order."""

from __future__ import annotations

import pytest

from benchmarks.calibration.order import Candidate, chain, correlation


def _candidates(*seconds: float) -> list[Candidate]:
    return [Candidate(origin="", assignment=(), choices=(), seconds=s) for s in seconds]


def test_the_chain_is_ten_percent_apart_and_keeps_both_ends() -> None:
    found = _candidates(1.0, 1.05, 1.1, 1.2, 1.25, 1.5, 1.66, 10.0)
    assert [c.seconds for c in chain(found, 16)] == [1.0, 1.1, 1.25, 1.5, 1.66, 10.0]
    assert [c.seconds for c in chain(found, 3)] == [1.0, 1.25, 10.0]


def test_ranks_alone_count() -> None:
    """One swap of neighbours among 12: rho = 1 - 6 * 2 / (12 * 143)."""
    predicted = [float(2**i) for i in range(12)]
    measured = [float(i) for i in (0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 11)]
    rho, low, high = correlation(predicted, measured)
    assert rho == pytest.approx(1 - 12 / 1716)
    assert low < rho < high <= 1
    assert correlation(predicted, predicted)[0] == pytest.approx(1)


def test_the_interval_without_correlation() -> None:
    """Seven plans with uncorrelated ranks: Fisher's z has the error 1 / sqrt(4)."""
    rho, low, high = correlation([1, 2, 3, 4, 5, 6, 7], [1, 4, 6, 7, 5, 3, 2])
    assert rho == pytest.approx(0, abs=1e-9)
    assert -low == pytest.approx(high) == pytest.approx(0.75300, abs=1e-4)  # tanh(0.98)
