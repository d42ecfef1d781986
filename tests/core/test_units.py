"""Units: every expected value is written out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxplan.core._units import (
    format_bandwidth,
    format_bytes,
    format_gib,
    format_milliseconds,
    format_seconds,
    parse_memory,
)
from jaxplan.errors import ArgumentError


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (1, 1),
        (np.int64(4096), 4096),
        ("40GiB", 42_949_672_960),
        ("40GB", 40_000_000_000),
        (" 1.5 MiB ", 1_572_864),
        ("0.1kB", 100),
        ("12b", 12),
        ("2tib", 2_199_023_255_552),
        # 0.7 is not a binary fraction: exact arithmetic must not lose a byte.
        ("0.7GB", 700_000_000),
        ("1.0000000001GB", 1_000_000_000),
    ],
)
def test_parse_memory(value, num_bytes):
    assert parse_memory(value) == num_bytes


_NOT_MEMORY = [0, -1, 1.5, True, None, "", "40", "GiB", "40 gibs", "-1GiB", "0GB", "1e3GB", []]


@pytest.mark.parametrize("value", _NOT_MEMORY)
def test_parse_memory_says_what_was_given(value):
    with pytest.raises(ArgumentError, match="is not an amount of memory") as caught:
        parse_memory(value)
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@given(st.integers(min_value=1, max_value=2**60))
def test_an_integer_of_bytes_survives(num_bytes):
    assert parse_memory(f"{num_bytes}B") == parse_memory(num_bytes) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (100, "100 B"),
        (1024, "1.00 KiB"),
        (42_949_672_960, "40.0 GiB"),
        (15.4 * 2**30, "15.4 GiB"),
        (0.25 * 2**30, "0.250 GiB"),
        (3 * 2**20, "3.00 MiB"),
        (1500 * 2**30, "1500 GiB"),
        (-(2**30), "-1.00 GiB"),
    ],
)
def test_format_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (61.25, "61.2 s"),
        (1.0, "1.00 s"),
        (0.0123, "12.3 ms"),
        (0.00099996, "1.00 ms"),
        (45e-6, "45.0 us"),
        (2e-9, "2.00 ns"),
        (float("inf"), "inf s"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_bare_columns_and_bandwidth():
    assert format_gib(42_949_672_960) == "40.0"
    assert format_gib(5 * 2**20) == "0.00488"
    assert format_milliseconds(0.475) == "475"
    assert format_milliseconds(1.2345) == "1234"  # half to even, as Python rounds
    assert format_bandwidth(4.5e11) == "450 GB/s"
    assert format_bandwidth(1.2e10) == "12.0 GB/s"
