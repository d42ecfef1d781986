"""The pictures of the documentation: `python -m benchmarks.pictures` makes them all again, below docs/images.

The step is that of docs/reading.md: the picture of its frontier, and its report in a real browser, as it opens and the
part that is of one plan. Needs the extra ``plot`` and a Chromium (Debian: package chromium; another: ``--browser``).
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
_PAGE = ROOT / "docs" / "reading.md"
_FENCE = "```python\n"
_WIDTH, _HEIGHT = 1280, 1000
_DRAWN_MILLISECONDS = 6000
"""Of the browser's own clock, until the interactive picture is drawn."""
_PLAN_HEIGHT = 2000
_WITHOUT_TOP = """<script>addEventListener("load", () => setTimeout(() => {
  while (plan.previousElementSibling) plan.previousElementSibling.remove();
}, 500));</script></body>"""
"""Put at the end of the page, leaves the part below the interactive picture."""
_TOP, _TOLD = "report.png", "report_plan.png"


def frontier_of_page() -> Any:
    """The frontier that the first snippet of docs/reading.md plans."""
    namespace: dict[str, Any] = {}
    snippet = _PAGE.read_text(encoding="utf-8").partition(_FENCE)[2].partition("```")[0]
    exec(compile(snippet, _PAGE.name, "exec"), namespace)
    return namespace["frontier"]


def shoot(browser: str, page: Path, picture: Path, *, height: int = _HEIGHT) -> None:
    """Write a browser's view of a page, from its top to ``height`` pixels below, as PNG."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={_WIDTH},{height}", f"--virtual-time-budget={_DRAWN_MILLISECONDS}",
            f"--screenshot={picture}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=300)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args(arguments)
    frontier = frontier_of_page()
    frontier.plot(options.folder / "frontier.png", choose="knee")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        frontier.report(page, choose="knee")
        shoot(options.browser, page, options.folder / _TOP)
        text = page.read_text(encoding="utf-8")
        only = Path(folder) / "plan.html"
        only.write_text(text.replace("</body>", _WITHOUT_TOP), encoding="utf-8")
        shoot(options.browser, only, options.folder / _TOLD, height=_PLAN_HEIGHT)
    for name in ("frontier.png", _TOP, _TOLD):
        print(f"{options.folder / name}: {(options.folder / name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
