"""Entries come back as they were kept, damaged ones not at all, and the folder stays within its bound."""

import logging
import os
from pathlib import Path

import pytest

from jaxplan.core import _log
from jaxplan.core._disk_cache import DiskCache

ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64


@pytest.fixture(autouse=True)
def warnings_anew():
    _log.forget()


def test_an_entry_comes_back_in_another_process_of_the_same_folder(tmp_path: Path):
    DiskCache(folder=tmp_path / "made" / "here").write(ONE, b"plans")
    again = DiskCache(folder=tmp_path / "made" / "here")
    assert (again.read(ONE), again.read(TWO)) == (b"plans", None)


def flip_a_bit(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize("damage", [lambda c: c[:40], lambda c: c[:-5], lambda c: b"", flip_a_bit])
def test_a_damaged_entry_is_one_warning_and_then_written_anew(tmp_path: Path, caplog, damage):
    cache = DiskCache(folder=tmp_path)
    cache.write(ONE, b"plans" * 100)
    path = cache.path(ONE)
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "jaxplan"):
        assert cache.read(ONE) is cache.read(ONE) is None
    assert len(caplog.records) == 1
    cache.write(ONE, b"others")
    assert cache.read(ONE) == b"others"


def test_an_entry_under_another_name_is_damaged(tmp_path: Path):
    cache = DiskCache(folder=tmp_path)
    cache.write(ONE, b"plans")
    os.rename(cache.path(ONE), cache.path(TWO))
    assert cache.read(TWO) is None


def test_entries_used_longest_ago_go_first_and_other_files_stay(tmp_path: Path):
    (tmp_path / "notes.txt").write_bytes(bytes(10_000))
    data = {key: os.urandom(1000) for key in (ONE, TWO, THREE)}  # does not compress
    cache = DiskCache(folder=tmp_path, max_bytes=2500)
    for seconds, key in enumerate((ONE, TWO)):
        cache.write(key, data[key])
        os.utime(cache.path(key), (seconds, seconds))
    assert cache.read(ONE) == data[ONE]  # used last
    cache.write(THREE, data[THREE])
    assert [cache.read(key) for key in (ONE, TWO, THREE)] == [data[ONE], None, data[THREE]]
    assert (tmp_path / "notes.txt").stat().st_size == 10_000


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    cache = DiskCache(folder=tmp_path / "file")
    with caplog.at_level(logging.WARNING, "jaxplan"):
        cache.write(ONE, b"plans")
        cache.write(TWO, b"plans")
        assert cache.read(ONE) is None
    assert len(caplog.records) == 1
