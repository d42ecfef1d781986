"""Loops with a length that the compiler does not write beside them: counted where counters are constants."""

import pytest

from jaxplan.audit._hlo_text import parse_module

PROGRAM = """HloModule counted

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %by = s32[] constant({by})
  %next = s32[] add(%i, %by)
  %x = f32[8]{{0}} get-tuple-element(%p), index=1
  %y = f32[8]{{0}} multiply(%x, %x)
  ROOT %out = (s32[], f32[8]{{0}}) tuple(%next, %y)
}}

%ends (q: (s32[], f32[8])) -> pred[] {{
  %q = (s32[], f32[8]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant({limit})
  ROOT %goes = pred[] compare(%j, %limit), direction={direction}
}}

ENTRY %main (a: f32[8], n: s32[]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] constant({start})
  %copied = s32[] copy(%zero)
  %given = (s32[], f32[8]{{0}}) tuple({first}, %a)
  %loop = (s32[], f32[8]{{0}}) while(%given), condition=%ends, body=%body
  ROOT %result = f32[8]{{0}} get-tuple-element(%loop), index=1
}}
"""


def _runs(*, start=0, by=1, limit=256, direction="LT", first="%copied"):
    module = parse_module(PROGRAM.format(start=start, by=by, limit=limit, direction=direction, first=first))
    return module.runs["body"], module.runs["ends"], module.unknown_loops


@pytest.mark.parametrize(("start", "by", "limit"), [(0, 1, 256), (3, 2, 10), (-4, 3, 5), (7, 1, 7), (9, 1, 2)])
def test_counters_are_counted(start, by, limit) -> None:
    trips = len(range(start, limit, by))
    assert _runs(start=start, by=by, limit=limit) == (trips, trips + 1, ())


@pytest.mark.parametrize("other", [{"first": "%n"}, {"direction": "GT"}, {"by": -1}, {"by": 0}], ids=repr)
def test_other_loops_count_once_and_are_named(other) -> None:
    assert _runs(**other) == (1, 2, ("loop",))
