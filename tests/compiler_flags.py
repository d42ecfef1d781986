"""Flags of a CPU compiler in a hurry: a program of a test runs a few times, and compiling it takes most of the time.

Nothing here imports JAX: flags must be in the environment before it starts.
"""

import importlib.metadata

NUM_DEVICES = 8

_HURRY = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")
_HURRY_BEFORE_0_11 = ("--xla_cpu_use_fusion_emitters=false",)
"""Compiles small programs in half to a fifth of the time; later compilers end at a flag that they do not know."""


def quick_compiler() -> tuple[str, ...]:
    """The flags that the installed compiler knows."""
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    return _HURRY + (_HURRY_BEFORE_0_11 if version < (0, 11) else ())


def devices(number: int = NUM_DEVICES) -> str:
    """The flag of so many virtual CPU devices."""
    return f"--xla_force_host_platform_device_count={number}"
