"""The pictures of the documentation come out of one command, and are those of the step in docs/reading.md."""

from __future__ import annotations

import shutil
import struct

import pytest

from benchmarks import pictures


def test_the_frontier_is_that_of_the_page():
    frontier = pictures.frontier_of_page()
    assert frontier.points[0].topology.name == "h100:8"
    assert {"data2_tensor4", "megatron"} <= set(frontier.references)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw the page")
def test_all_pictures_are_made(tmp_path):
    pictures.main(["--folder", str(tmp_path)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in pictures.IMAGES.iterdir())
    for name in ("report.png", "report_plan.png"):
        content = (tmp_path / name).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">I", content[16:20]) == (1280,)
