"""Tests run on eight virtual CPU devices, with a CPU compiler in a hurry; settings come before jax is first imported.

Where XLA_FLAGS already names an optimisation level, the compiler is left as it is: `make test-all` does so. Compilers
for GPUs and TPUs without their devices run in processes of their own, with none of these flags. Tests marked
`gpu_aot` or `tpu_aot` are skipped where the compiler is not installed.
"""

import gc
import importlib.util
import os
import sys

import pytest

from tests import compiler_flags

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could set JAX_PLATFORMS and XLA_FLAGS")

_COMPILERS = {"gpu_aot": ("jax_cuda12_plugin", "GPUs"), "tpu_aot": ("libtpu", "TPUs")}

gc.set_threshold(100_000, 50, 100)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands that tests start compile the modules of the project once
_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
_flags.append(compiler_flags.devices())
if not any("xla_backend_optimization_level" in flag for flag in _flags):
    _flags.extend(compiler_flags.quick_compiler())
os.environ["XLA_FLAGS"] = " ".join(_flags)


@pytest.fixture(autouse=True)
def _nothing_is_compiled_unasked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans near a memory limit are compiled by default, which takes seconds each: here in tests that compile alone."""
    if not any(request.node.get_closest_marker(mark) for mark in _COMPILERS):
        monkeypatch.setattr("jaxplan.search._verify.can_verify", lambda topology: False)


def pytest_collection_finish() -> None:
    """Imported modules stay: the collector need not look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for slow in _beside_samples(items):
        slow.add_marker(pytest.mark.slow)
    for mark, (module, chips) in _COMPILERS.items():
        if importlib.util.find_spec(module) is None:
            reason = f"needs the extra {mark.replace('_', '-')} to compile for {chips}"
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=reason))


def _beside_samples(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of tests with the mark `sample(keep)` and more parameters than that, those that only `make test-all` runs."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: list[pytest.Item] = []
    for of in found.values():
        mark = of[0].get_closest_marker("sample")
        assert mark is not None
        kept = {place * len(of) // mark.args[0] for place in range(mark.args[0])}
        left += [item for place, item in enumerate(of) if place not in kept]
    return left
