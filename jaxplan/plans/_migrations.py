"""Plan files of older schema versions, brought to the present one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxplan.errors import PlanFileError

PLAN_VERSION = 6
"""Of the files that `jaxplan.Plan.save` writes: 6 has the lowering decisions."""

_Fields = dict[str, Any]

_OTHER_VERSION_MSG = (
    "the plan file has schema version {given!r}, and this jaxplan reads versions {oldest} to {newest}: plan again.\n"
    "  because:  {reason}\n"
    '  expected: "version": {oldest} to {newest}\n'
    "  likely cause: another version of jaxplan wrote the file\n"
    "  fix: plan again with jaxplan.plan(step, *args, topology=...) and save the plan, or use the jaxplan that wrote it"
)
_NO_AVALS = "version 1 has no dtypes and shapes of the arguments, which its layouts cannot be checked without"


def migrated(data: Mapping[str, Any]) -> _Fields:
    """The fields of a plan file in the present schema; the given ones are not changed.

    A plan of a file older than version 6 has no lowering decisions: they are made when it is bound to its step.

    Raises:
      PlanFileError: the version is unknown, or too old.
    """
    version = data.get("version")
    is_known = type(version) is int and (version == PLAN_VERSION or version in _MIGRATIONS)
    if not is_known:
        reason = _NO_AVALS if version == 1 else "there is no migration from it"
        raise PlanFileError(
            _OTHER_VERSION_MSG.format(
                given=version, oldest=min(_MIGRATIONS), newest=PLAN_VERSION, reason=reason
            )
        )
    fields = dict(data)
    while fields["version"] != PLAN_VERSION:
        number = fields["version"]
        fields = {**_MIGRATIONS[number](fields), "version": number + 1}
    return fields


def _with_proofs(fields: _Fields) -> _Fields:
    """2 -> 3: gap, and how many configurations it is within; nothing was recorded before."""
    return {"gap": None, "most_configurations": None, **fields}


def _with_overlap(fields: _Fields) -> _Fields:
    """3 -> 4: seconds hidden by overlap, recomputed blocks, compiled figures; collectives have a share of a latency.

    Files of version 3 say either that share, or whether those of one kind and group pay one latency together.
    """
    prediction = fields.get("prediction")
    if isinstance(prediction, dict):
        collectives = prediction.get("collectives")
        if isinstance(collectives, list):
            prediction = {**prediction, "collectives": [_with_share(c) for c in collectives]}
        prediction = {"hidden_seconds": 0.0, **prediction}
    return {"remat": None, "verified": None, **fields, "prediction": prediction}


def _with_share(collective: Any) -> Any:
    if not isinstance(collective, dict) or "pooled" not in collective:
        return collective
    rest = {name: value for name, value in collective.items() if name != "pooled"}
    return {**rest, "latency_share": 0.0 if collective["pooled"] else 1.0}


def _with_outline(fields: _Fields) -> _Fields:
    """4 -> 5: an outline of the splits in the place of one line of text."""
    summary = fields.get("summary")
    rest = {name: value for name, value in fields.items() if name != "summary"}
    return {**rest, "outline": {"splits": [{"text": summary, "share": 1.0}]}}


def _without_lowering(fields: _Fields) -> _Fields:
    """5 -> 6: the lowering decisions, which were computed whenever a plan was lowered."""
    return {**fields, "lowering": None}


_MIGRATIONS: Mapping[int, Callable[[_Fields], _Fields]] = {
    2: _with_proofs,
    3: _with_overlap,
    4: _with_outline,
    5: _without_lowering,
}
"""Version -> the fields of the next version."""
