"""The built wheel holds the package's data, and plans a step where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PLAN = """
import jax, jax.numpy as jnp, jaxplan
step = lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
f = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
print(jaxplan.__file__, len(jaxplan.plan(step, f(64, 64), f(128, 64), topology="h100:8", progress=False)))
"""


@pytest.mark.slow
def test_the_wheel_holds_its_data_and_plans_a_step(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("jaxplan-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("jaxplan/")}
    in_source = {str(path.relative_to(ROOT)) for path in (ROOT / "jaxplan").rglob("*") if path.is_file()}
    assert {name for name in in_source if "__pycache__" not in name} == packed
    target = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", _PLAN], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    file, points = done.stdout.split()
    assert Path(file).is_relative_to(target) and int(points) >= 1
