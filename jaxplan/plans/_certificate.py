"""The proof of a plan in words: how far its seconds can be from the optimum."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.plans._plan_data import PlanData


def certificate(plan: PlanData) -> str:
    """The proof of one plan in words."""
    if plan.gap is None:
        return "nothing is proven of this plan"
    within = _within(plan.most_configurations)
    if plan.gap == 0:
        return f"optimal for the cost model{within}: nothing of at most its memory costs less (proven)"
    return f"nothing of at most its memory costs over {plan.gap / (1 + plan.gap):.2%} less in the cost model{within}"


def proven_points(points: Sequence[PlanData]) -> str | None:
    """Which points of a frontier are proven optimal, by number, and how far the others can be from it."""
    known = [(index, plan.gap) for index, plan in enumerate(points) if plan.gap is not None]
    if not known:
        return None
    within = _within(next(plan for plan in points if plan.gap is not None).most_configurations)
    proven = [index for index, gap in known if gap == 0]
    if not proven and any(plan.overlapped for plan in points):
        most = max(gap for _, gap in known)
        return f"times are simulated, with overlap; none is over {most:.1%} above its bound{within}"
    text = f"optimal for the cost model{within}: {_numbers(proven, len(points))}"
    if len(proven) < len(known):
        text += f"; gap of the others at most {max(gap for _, gap in known):.1%}"
    return text


def _within(most_configurations: int | None) -> str:
    return "" if most_configurations is None else f" within {most_configurations} configurations an operator"


def _numbers(indices: Sequence[int], num_points: int) -> str:
    """Ascending numbers with runs of three and more joined."""
    if len(indices) == num_points:
        return "every point" if num_points > 1 else "the only point"
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [f"#{run[0]}-#{run[-1]}" if len(run) > 2 else ", ".join(f"#{i}" for i in run) for run in runs]
    return ", ".join(parts) or "no point is proven"
