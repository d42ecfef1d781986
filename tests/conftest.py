"""Tests run on eight virtual CPU devices; both settings must be there before jax is first imported.

Tests marked `gpu_aot` or `tpu_aot` are skipped where the compiler is not installed.
"""

import importlib.util
import os
import sys

import pytest

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could set JAX_PLATFORMS and XLA_FLAGS")

_NUM_VIRTUAL_DEVICES = 8
_COMPILERS = {"gpu_aot": ("jax_cuda12_plugin", "GPUs"), "tpu_aot": ("libtpu", "TPUs")}

os.environ["JAX_PLATFORMS"] = "cpu"
_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
_flags.append(f"--xla_force_host_platform_device_count={_NUM_VIRTUAL_DEVICES}")
os.environ["XLA_FLAGS"] = " ".join(_flags)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for mark, (module, chips) in _COMPILERS.items():
        if importlib.util.find_spec(module) is None:
            reason = f"needs the extra {mark.replace('_', '-')} to compile for {chips}"
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=reason))
