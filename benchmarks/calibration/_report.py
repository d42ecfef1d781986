"""Tables and the bar of `benchmarks.calibration`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.calibration._again import Seconds
from benchmarks.calibration._record import Operator, Origin, Step, read_records

TIME_MEDIAN = 0.10
"""Bar: the median error of step time on one device."""


def report(paths: Sequence[Path]) -> int:
    """Print the records of files, each with its machine; 1 where the bar is missed on an accelerator."""
    return max([_report(*read_records(path)) for path in paths])


def print_kinds(steps: Iterable[Seconds]) -> None:
    """Of each step, milliseconds by kind, predicted and measured, and its long kernels; of all, the median ratio."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        print(f"{step.size}; {step.num_kernels:.0f} kernels")
        for kind in dict.fromkeys((*step.predicted, *step.measured)):
            predicted, measured = step.predicted.get(kind, 0.0), step.measured.get(kind, 0.0)
            print(f"    {kind:<14} predicted {predicted * 1e3:>9.3f} ms   measured {measured * 1e3:>9.3f} ms")
            if predicted and measured:
                ratios[kind].append(predicted / measured)
        for name, seconds in step.longest:
            print(f"    {name:<50} {seconds * 1e3:>9.3f} ms")
    for kind, each in ratios.items():
        low, middle, high = np.quantile(each, (0.25, 0.5, 0.75))
        spread = f"quartiles {low:.2f} and {high:.2f}, of {len(each)} steps"
        print(f"{kind:<14} predicted over measured: {middle:.2f}, {spread}")


def _report(origin: Origin, records: Sequence[Operator | Step]) -> int:
    machine = origin.machine
    versions = ", ".join([f"jax {machine.jax}", f"jaxlib {machine.jaxlib}", *origin.plugins])
    print(
        f"{machine.device_kind} ({origin.chip}, {origin.runtime}), host {machine.processor}, "
        f"{machine.num_cores} cores; {versions}"
    )
    operators = [r for r in records if isinstance(r, Operator)]
    steps = [r for r in records if isinstance(r, Step)]
    if operators:
        _print_operators(operators, "nominal" if origin.platform == "cpu" else "data sheet")
    if steps:
        _print_steps(steps)
        _print_medians(steps)
    return _verdict(origin, judged(steps))


def _print_operators(operators: Sequence[Operator], peak: str) -> None:
    columns = (
        f"{'seconds':>10} {'achieved':>15} {'of the ' + peak:>18} {'model/real':>10} {'profile/real':>12}"
    )
    print(f"\n{'operator':<18} {'dtype':<9} {'shape':<20} {columns}")
    for r in operators:
        rate = f"{r.per_second / 1e9:.4g} {'GFLOP/s' if r.flops else 'GB/s'}"
        measured = "" if r.profile_seconds is None else f"{r.profile_seconds / r.seconds:.2f}"
        print(
            f"{r.operator:<18} {r.dtype:<9} {'x'.join(map(str, r.shape)):<20} {r.seconds:>10.3g} {rate:>15} "
            f"{r.per_second / r.peak_per_second:>18.1%} {r.predicted_seconds / r.seconds:>10.2f} {measured:>12}"
        )


def _print_steps(steps: Sequence[Step]) -> None:
    print(
        f"\n{'model':<10} {'topology':<10} {'point':<8} {'priced by':<10} {'predicted':>10} {'measured':>10} "
        f"{'quartiles':>9} {'error':>7}   {'predicted':>10} {'peak':>10} {'error':>7}"
    )
    for r in steps:
        source = "compiled" if r.device_bytes is None else "device"
        mocked = ", compute alone: collectives are mocked" if r.is_mocked else ""
        print(
            f"{r.model:<10} {r.topology:<10} {r.point:<8} {r.priced_by:<10} {r.predicted_seconds * 1e3:>7.2f} ms "
            f"{r.measured_seconds * 1e3:>7.2f} ms {r.spread:>9.0%} {r.error:>+7.1%}   "
            f"{r.predicted_bytes / 2**20:>6.1f} MiB {r.peak_bytes / 2**20:>6.1f} MiB "
            f"{r.predicted_bytes / r.peak_bytes - 1:>+7.1%} {source}; {r.size}{mocked}"
        )


def _print_medians(steps: Sequence[Step]) -> None:
    """Of each model and of all, one device apart from several."""
    groups: dict[tuple[bool, str, str], list[Step]] = defaultdict(list)
    for r in steps:
        for model in (r.model, "all"):
            groups[r.num_devices > 1, r.priced_by, model].append(r)
    print(f"\n{'median error of':<40} {'step time':>10} {'memory':>8}")
    for (is_several, priced_by, model), members in sorted(
        groups.items(), key=lambda g: (g[0][:2], g[0][2] == "all")
    ):
        name = f"{model}, {'several devices' if is_several else 'one device'}, by {priced_by}"
        memory = statistics.median(abs(r.predicted_bytes / r.peak_bytes - 1) for r in members)
        print(f"{name:<40} {median_error(members):>10.1%} {memory:>8.1%}")


def judged(steps: Sequence[Step]) -> list[Step]:
    """Those that the bar is about: on one device, priced by its profile where any are."""
    single = [r for r in steps if r.num_devices == 1]
    return [r for r in single if r.priced_by == "profile"] or single


def median_error(steps: Sequence[Step]) -> float:
    """Of step times, predicted against measured, either way."""
    return statistics.median(abs(r.error) for r in steps)


def _verdict(origin: Origin, steps: Sequence[Step]) -> int:
    if not steps:
        print("\nno step on one device was measured: nothing to judge\n")
        return 0 if origin.platform == "cpu" else 1
    error = median_error(steps)
    text = f"step time on one device, median error of {len(steps)} steps: {error:.1%}, bar {TIME_MEDIAN:.0%}"
    holds = error <= TIME_MEDIAN
    if origin.platform == "cpu":
        print(
            f"\n{'within' if holds else 'above '} {text}; it is about accelerators, and does not decide on CPU\n"
        )
        return 0
    print(f"\n{'ok  ' if holds else 'MISS'} {text}\n")
    return 0 if holds else 1
