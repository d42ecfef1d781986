"""Settings of a process that fuzzes; to be applied before JAX starts a backend."""

from __future__ import annotations

import os

import jax

from tests.compiler_flags import NUM_DEVICES as NUM_DEVICES
from tests.compiler_flags import devices, quick_compiler

_EXACT = "--xla_allow_excess_precision=false"  # or bfloat16 is not always rounded to


def apply_settings() -> None:
    """Eight virtual CPU devices, float64, and a compiler in a hurry."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join([devices(), *quick_compiler(), _EXACT])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update(
        "jax_traceback_in_locations_limit", 0
    )  # where each operator comes from takes time to write
