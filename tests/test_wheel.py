"""The built wheel and sdist: metadata that an index takes, the package's data, and a plan in a clean environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True)
    (sdist,), (wheel,) = folder.glob("jaxplan-*.tar.gz"), folder.glob("jaxplan-*.whl")
    return sdist, wheel


def files_of_the_package() -> set[str]:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "jaxplan").rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name}


def test_an_index_takes_both(built: tuple[Path, Path]) -> None:
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], check=True)


def test_both_hold_the_package_with_its_data(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("jaxplan/")}
    assert packed == files_of_the_package()
    assert packed | {"LICENSE", "README.md", "pyproject.toml"} <= sources


def test_a_clean_environment_plans_the_step_of_the_readme(built: tuple[Path, Path], tmp_path: Path) -> None:
    """With the dependencies that the wheel names, and nothing else."""
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(built[1])], check=True)
    step = SNIPPET.findall((ROOT / "README.md").read_text())[0]
    limit = int(step.partition('frontier.within("')[2].partition("GiB")[0]) * 2**30
    script = tmp_path / "step.py"
    script.write_text(f"{step}\nprint(jaxplan.__file__, plan.topology.name, plan.memory_bytes)\n")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    done = subprocess.run(
        [python, str(script)], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    file, topology, memory_bytes = done.stdout.splitlines()[-1].split()
    assert Path(file).is_relative_to(tmp_path / "clean") and topology == "h100:8" and int(memory_bytes) <= limit
