"""Agreement between the processes of one run, over the store of keys and values that `jax.distributed` keeps.

A program over the devices of several processes runs only where all of them call it; processes that call different ones
wait for each other for ever. So they compare notes before: every exchange has a number, its topic is compared too, and
one that does not come in time, or differs, is the same error in every process.
"""

from __future__ import annotations

import itertools
import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxplan import errors
from jaxplan.core import _compat
from jaxplan.errors import JaxplanError, ProcessError

WAIT_SECONDS = 300
"""How long a process waits for the others to come to the same place; as long as `jax.distributed.initialize` does."""
_GRACE_SECONDS = 30
"""Longer than the first process waits: its verdict arrives before the others stop waiting for it."""
_MOST_SHOWN = 120

_DIFFERS_MSG = (
    "the processes of this run differ in {topic}: {name}.\n"
    "  given:        {given}\n"
    "  expected:     the same in every process: one program runs on the devices of all of them\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}"
)
_ELSEWHERE_MSG = (
    "the processes of this run are at different places.\n"
    "  given:        {given}\n"
    "  expected:     the same planned steps, called in the same order in every process\n"
    "  likely cause: a step that only one process calls (behind `if jax.process_index() == 0`), or loops of unequal "
    "length\n"
    "  fix:          call it in every process; what one process does alone belongs outside of planned steps"
)
_ABSENT_MSG = (
    "process {process} did not come to {topic} within {seconds} s.\n"
    "  expected:     every process calls the planned steps in the same order\n"
    "  likely cause: process {process} has ended, waits elsewhere, or does not call the step\n"
    "  fix:          look at its output; call the step in every process"
)

_numbers = itertools.count()
_lock = threading.Lock()


def spans_processes(devices: Any) -> bool:
    """Whether devices, of JAX, belong to more than one process."""
    return len({device.process_index for device in devices}) > 1


def exchange(topic: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts of every process, by its number; all of them call this in the same order.

    Args:
      topic: the place in the program; at another one the processes do not agree.
      facts: plain data.

    Raises:
      ProcessError: a process does not come in time, or is at another topic; the same in every process.
    """
    with _lock:
        found = _exchanged(next(_numbers), {"topic": topic, "facts": dict(facts)})
    topics = [notes["topic"] for notes in found]
    if len(set(topics)) > 1:
        raise ProcessError(_ELSEWHERE_MSG.format(given=_by_process(topics)))
    return [notes["facts"] for notes in found]


def _exchanged(number: int, notes: Mapping[str, Any]) -> list[dict[str, Any]]:
    client, process, count = _compat.distributed_client(), _compat.process_id(), _compat.num_processes()
    place = f"jaxplan/{number}"
    if process:
        client.key_value_set(f"{place}/{process}", json.dumps(notes))
        text = _read(client, f"{place}/all", WAIT_SECONDS + _GRACE_SECONDS)
        if text is None:
            raise _absent(0, notes["topic"])
    else:
        text = json.dumps(_gathered(client, place, count, notes))
        client.key_value_set(f"{place}/all", text)
        client.key_value_delete(f"jaxplan/{number - 1}/")  # read by all: they are at this one, or in error
    found = json.loads(text)
    if "error" in found:
        raise ProcessError(found["error"])
    return found["notes"]


def _gathered(client: Any, place: str, count: int, notes: Mapping[str, Any]) -> dict[str, Any]:
    found: list[Any] = [notes]
    for other in range(1, count):
        text = _read(client, f"{place}/{other}", WAIT_SECONDS)
        if text is None:
            return {"error": str(_absent(other, notes["topic"]))}
        found.append(json.loads(text))
    return {"notes": found}


def _absent(process: int, topic: str) -> ProcessError:
    return ProcessError(_ABSENT_MSG.format(process=process, topic=topic, seconds=WAIT_SECONDS))


def _read(client: Any, key: str, seconds: float) -> str | None:
    """The value of a key as soon as there is one; None where time is up."""
    try:
        return client.blocking_key_value_get(key, int(seconds * 1000))
    except _compat.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return None


def agree(topic: str, facts: Mapping[str, str], *, cause: str, fix: str) -> None:
    """Compare facts with those of the other processes.

    Args:
      facts: by name; the first that differs is named.
      cause, fix: of a difference, for the error.

    Raises:
      ProcessError: they differ, or a process does not come; the same in every process.
    """
    found = exchange(topic, facts)
    for name in facts:
        values = [of.get(name, "") for of in found]
        if len(set(values)) > 1:
            raise ProcessError(
                _DIFFERS_MSG.format(topic=topic, name=name, given=_by_process(values), cause=cause, fix=fix)
            )


def from_first(topic: str, compute: Callable[[], Any]) -> Any:
    """The plain data that the first process computes, in every process; the others wait as long as it takes.

    Raises:
      JaxplanError: what the computation raises, in every process alike.
    """
    if _compat.process_id():
        return _received(topic)
    outcome: dict[str, Any] = {"type": "ProcessError", "error": f"process 0 was interrupted at {topic}"}
    with _lock:
        number = next(_numbers)
    try:
        outcome = {"value": compute()}
        return outcome["value"]
    except JaxplanError as error:
        details = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        outcome = {"type": type(error).__name__, "error": str(error), "details": details}
        raise
    except Exception as error:
        outcome["error"] = f"process 0 failed at {topic}: {type(error).__name__}: {error}"
        raise
    finally:
        data = zlib.compress(json.dumps(outcome).encode(), 1)
        _compat.distributed_client().key_value_set_bytes(f"jaxplan/{number}/all", data)


def _received(topic: str) -> Any:
    client = _compat.distributed_client()
    with _lock:
        number = next(_numbers)
    while True:  # a first process that dies ends this one too: `jax.distributed` watches over them
        try:
            data = client.blocking_key_value_get_bytes(f"jaxplan/{number}/all", WAIT_SECONDS * 1000)
            break
        except _compat.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
    outcome = json.loads(zlib.decompress(data))
    if "error" in outcome:
        raise getattr(errors, outcome["type"], ProcessError)(outcome["error"], **outcome.get("details", {}))
    return outcome["value"]


def _by_process(values: Sequence[Any]) -> str:
    """Each value that differs from the first process's, and that one."""
    shown = [0, *[i for i, value in enumerate(values) if value != values[0]][:3]]
    return "; ".join(f"process {i}: {_shortened(str(values[i]))}" for i in shown)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + " ..."
