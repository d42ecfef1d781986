"""Tests run on eight virtual CPU devices; both settings must be there before jax is first imported."""

import os
import sys

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could set JAX_PLATFORMS and XLA_FLAGS")

_NUM_VIRTUAL_DEVICES = 8

os.environ["JAX_PLATFORMS"] = "cpu"
_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
_flags.append(f"--xla_force_host_platform_device_count={_NUM_VIRTUAL_DEVICES}")
os.environ["XLA_FLAGS"] = " ".join(_flags)
