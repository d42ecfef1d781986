"""Settings of a process that fuzzes; to be applied before JAX starts a backend."""

from __future__ import annotations

import os

import jax

NUM_DEVICES = 8
_FLAGS = (
    f"--xla_force_host_platform_device_count={NUM_DEVICES}",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_allow_excess_precision=false",  # or bfloat16 is not always rounded to
)
_FLAGS_BEFORE_0_11 = ("--xla_cpu_use_fusion_emitters=false",)
"""Compiles a tiny program in a fifth of the time; later compilers do not know it."""


def apply_settings() -> None:
    """Eight virtual CPU devices, float64, and a compiler in a hurry."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    early = tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 11)
    os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, *(_FLAGS_BEFORE_0_11 if early else ())])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update(
        "jax_traceback_in_locations_limit", 0
    )  # where each operator comes from takes time to write
