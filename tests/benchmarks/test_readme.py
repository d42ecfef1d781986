"""README shows the output of its code; `python -m benchmarks.readme --write` puts it right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import readme
from tests.versions import TRACED_OTHERWISE

TEXT = """\
```python
x = 3
print(f"{{x:>4}} ")
print("searched for 12 ms")
```

```
{printed}
```

```python
x + 1   # is then: {value}
```
"""


@TRACED_OTHERWISE
def test_readme_prints_what_the_code_prints() -> None:
    root = readme.README.parent
    done = subprocess.run(  # a process of its own: README registers a rule
        [sys.executable, "-m", "benchmarks.readme"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"run python -m benchmarks.readme --write\n{done.stdout}\n{done.stderr[-2000:]}"


def test_what_is_printed_replaces_what_was_there() -> None:
    right = TEXT.format(printed="   3\nsearched for 12 ms", value=4)
    assert readme.as_run(right) == right
    assert readme.as_run(TEXT.format(printed="   2\nsearched for 7 s", value=5)) == right
    other_time = TEXT.format(printed="   3\nsearched for 7.1 s", value=4)
    assert readme.as_run(other_time) == other_time


def test_code_that_prints_needs_a_block() -> None:
    with pytest.raises(ValueError, match="no text block follows"):
        readme.as_run("```python\nprint(1)\n```\n")
