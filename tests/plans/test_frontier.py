"""The frontier on small fake plans: choices by geometry, errors, table, plot and files."""

import builtins
import itertools
import json
import xml.etree.ElementTree as ElementTree

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxplan
from jaxplan.errors import ArgumentError, InfeasibleError, MissingExtraError, PlanFileError
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._outline import Outline, Split
from tests.fake_plan import GIB, FakePlan


def make_plan(gib, milliseconds, name="", split="", **fields):
    outline = Outline(splits=(Split(text=split, share=1.0),), state_ways=8) if split else Outline()
    return FakePlan(
        name=name, memory_bytes=int(gib * GIB), time_seconds=milliseconds / 1e3, outline=outline, **fields
    )


def make_frontier(*points, **fields):
    return Frontier.from_plans([make_plan(*point) for point in points], **fields)


# In log2-log2 the chord runs from (0, 6) to (6, 0); (1, 3) lies 2 below it, (3, 1.6) only 1.4.
CURVE = [(1, 64, "lean"), (2, 8, "bend"), (8, 3, "mid"), (64, 1, "fast")]


def test_the_three_choices():
    frontier = make_frontier(*CURVE)
    assert [plan.name for plan in frontier] == ["lean", "bend", "mid", "fast"]
    assert frontier.leanest().name == "lean"
    assert frontier.fastest().name == "fast"
    assert frontier.knee().name == "bend"
    assert len(frontier) == 4
    assert frontier[1].name == "bend"
    assert [plan.name for plan in frontier[2:]] == ["mid", "fast"]


@pytest.mark.parametrize("share", [1.0, 0.3, 1e-30])
def test_one_split_is_that_of_the_plan_whatever_its_share(share):
    assert str(Outline(splits=(Split(text="data 8", share=share),))) == "data 8"


@pytest.mark.parametrize("scale_memory, scale_time", [(1, 1), (1000, 1), (1, 1e-4), (7, 13)])
def test_the_knee_does_not_depend_on_units(scale_memory, scale_time):
    frontier = make_frontier(*((m * scale_memory, t * scale_time, name) for m, t, name in CURVE))
    assert frontier.knee().name == "bend"


def test_knee_ties_go_to_less_memory():
    on_the_chord = make_frontier((1, 8, "a"), (2, 4, "b"), (4, 2, "c"), (8, 1, "d"))
    assert on_the_chord.knee().name == "a"
    symmetric = make_frontier((1, 64, "a"), (2, 16, "b"), (16, 2, "c"), (64, 1, "d"))
    assert symmetric.knee().name == "b"
    above_the_chord = make_frontier((1, 8, "a"), (7, 7, "b"), (8, 1, "c"))
    assert above_the_chord.knee().name == "a"
    assert make_frontier((1, 1, "only")).knee().name == "only"


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=30))
def test_from_plans_keeps_exactly_the_unbeaten(pairs):
    plans = [make_plan(gib, ms, str(i)) for i, (gib, ms) in enumerate(pairs)]
    # Brute force over pairs: beaten by a plan no worse in both and better in one, or equal and earlier.
    unbeaten = {
        (gib, ms)
        for gib, ms in pairs
        if not any(g <= gib and m <= ms and (g, m) != (gib, ms) for g, m in pairs)
    }
    frontier = Frontier.from_plans(plans)
    assert [(p.memory_bytes // GIB, round(p.time_seconds * 1e3)) for p in frontier] == sorted(unbeaten)
    firsts = {pair: str(i) for i, pair in reversed(list(enumerate(pairs)))}
    assert [p.name for p in frontier] == [firsts[pair] for pair in sorted(unbeaten)]


def test_within_takes_the_fastest_that_fits():
    frontier = make_frontier(*CURVE)
    assert frontier.within("2GiB").name == "bend"  # at most: equality fits
    assert frontier.within(2 * GIB - 1).name == "lean"
    assert frontier.within("2GB").name == "lean"
    assert frontier.within("1TB").name == "fast"


def test_infeasible_names_the_smallest_memory_and_its_parts():
    parts = {"parameters": GIB, "activations": 3 * GIB, "batch": 0}
    frontier = Frontier.from_plans([make_plan(4, 2, memory_parts=parts), make_plan(9, 1)])
    with pytest.raises(InfeasibleError, match=r"no plan fits 3\.00 GiB") as caught:
        frontier.within("3GiB")
    message = str(caught.value)
    assert "leanest of 2 plans needs 4.00 GiB" in message
    assert message.index("activations 3.00 GiB") < message.index("parameters 1.00 GiB")
    assert "batch 0" not in message
    assert caught.value.smallest_memory_bytes == 4 * GIB
    assert caught.value.memory_parts == parts


def test_the_limit_filters():
    frontier = make_frontier(*CURVE, memory_limit_bytes=8 * GIB)
    assert frontier.fastest().name == "mid"
    with pytest.raises(InfeasibleError, match="leanest of 4 plans needs"):
        make_frontier(*CURVE, memory_limit_bytes=GIB - 1)


def test_choose():
    frontier = make_frontier(*CURVE)
    chosen = [frontier.choose(which).name for which in ("fastest", "knee", "leanest", 2, "2")]
    assert chosen == ["fast", "bend", "lean", "mid", "mid"]
    for wrong in ("best", 4, -1, "4", None, True, 1.5, 1.0, 1.5 + 1j, [1], "-1", "²"):
        with pytest.raises(ArgumentError, match="is no point of this frontier"):
            frontier.choose(wrong)


def test_a_label_is_how_a_plan_is_chosen():
    reference = make_plan(80, 95, "everywhere")
    frontier = make_frontier(*CURVE, references={"data": reference}, memory_limit_bytes=70 * GIB)
    assert [frontier.label(plan) for plan in frontier] == [
        "#0 (leanest)",
        "#1 (knee)",
        "#2 (by number)",
        "#3 (fastest)",
    ]
    assert frontier.choose("data") is reference
    assert frontier.label(reference) == "data (reference, over the limit)"
    with pytest.raises(ArgumentError, match="no plan of this frontier"):
        frontier.label(make_plan(40, 95, "of another frontier"))


def test_a_frontier_checks_its_own_order():
    good, worse = make_plan(1, 1, "good"), make_plan(2, 2, "worse")
    with pytest.raises(ArgumentError, match="must ascend in memory and descend in time"):
        Frontier(points=(good, worse))
    with pytest.raises(ArgumentError, match="at least one plan"):
        Frontier(points=())
    with pytest.raises(ArgumentError, match="finite"):
        Frontier(points=(make_plan(1, float("inf")),))


@pytest.fixture
def marked():
    return Frontier.from_plans(
        [
            make_plan(12, 100, compute_seconds=0.08, communication_seconds=0.02, split="data 8 [x]"),
            make_plan(20, 90, lower_bound_seconds=0.075, gap=0.2, split="data 4 x tensor 2"),
        ],
        references={"data": make_plan(40, 95, split="data 8"), "fsdp": make_plan(12, 101, split="data 8")},
        memory_limit_bytes=30 * GIB,
        search_seconds=1.5,
        notes=("sort: no rule" + " and so on" * 20,),
    )


def test_the_table_has_one_line_a_point(marked):
    lines = marked.table(width=100).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) <= 12
    (lean,), (fast,) = (
        [line for line in lines if line.split()[:2] == start] for start in (["0", "100"], ["1", "90.0"])
    )
    assert lean.split() == ["0", "100", "12.0", "leanest", "knee", "data", "8", "[x]", "1/8"]
    assert fast.split() == ["1", "90.0", "20.0", "fastest", "data", "4", "x", "tensor", "2", "1/8"]
    assert "references (ms GiB, ! over the limit): data 95.0 40.0!, fsdp 101 12.0" in lines
    assert any(line.startswith("note: sort: no rule and so on") for line in lines)


def test_the_verbose_table_shows_parts_of_the_time_references_and_sentences(marked):
    text = marked.table(width=100, verbose=True)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    lean, fast, data, fsdp = (
        next(line for line in lines if line.split()[:2] == start)
        for start in (["0", "100"], ["1", "90.0"], ["ref", "95.0"], ["ref", "101"])
    )
    assert "leanest knee" in lean and "data 8 [x]" in lean and "12.0" in lean and "80.0" in lean
    assert "fastest" in fast and "20.0%" in fast
    assert "data (over limit)" in data
    assert "fsdp" in fsdp and "over" not in fsdp
    assert "optimal for the cost model: no point is proven; gap of the others at most 20.0%" in text
    assert "2 plans" in text and "limit 30.0 GiB" in text and "1.50 s" in text
    assert " ".join(text.split()).count("and so on") == 20


def test_a_long_table_keeps_the_marked_rows():
    frontier = make_frontier(*((1 + i, 1000 / (1 + i) ** 2, str(i)) for i in range(50)))
    lines = frontier.table(max_rows=8, width=100).splitlines()
    numbers = [int(line.split()[0]) for line in lines if line[:3].strip().isdigit() and "plans" not in line]
    assert len(numbers) == 8 and numbers == sorted(numbers)
    assert {0, 49, frontier.points.index(frontier.knee())} <= set(numbers)
    assert max(b - a for a, b in itertools.pairwise(numbers)) <= 11
    assert "50 plans" in frontier.table(max_rows=8) and "8 of them shown" in frontier.table(max_rows=8)
    assert "shown" not in frontier.table(max_rows=50)


def test_notebooks_show_the_table():
    assert "&lt;x&gt;" in Frontier.from_plans([make_plan(1, 1, split="<x>")])._repr_html_()


def test_a_saved_frontier_comes_back_and_is_deterministic(tmp_path):
    references = {"fsdp": make_plan(9, 70, "fsdp"), "data": make_plan(80, 2, "data")}
    frontier = make_frontier(*CURVE, references=references, memory_limit_bytes=64 * GIB, notes=("n",))
    again = make_frontier(
        *CURVE, references=references, memory_limit_bytes=64 * GIB, notes=("n",), search_seconds=3
    )
    frontier.save(tmp_path / "a.json")
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    read = Frontier.from_json(json.loads((tmp_path / "a.json").read_text()), FakePlan.from_json)
    assert read.points == frontier.points
    assert dict(read.references) == references
    assert (read.memory_limit_bytes, read.notes, read.search_seconds) == (64 * GIB, ("n",), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "not a frontier file"),
        ({"version": 99}, "schema version 99, and this jaxplan reads 1"),
        ({"points": None}, "field 'points' is missing"),
    ],
)
def test_bad_files_say_what_is_wrong(change, message):
    data = {**make_frontier(*CURVE).to_json(), **change}
    data = {key: value for key, value in data.items() if value is not None or key == "memory_limit_bytes"}
    with pytest.raises(PlanFileError, match=message):
        Frontier.from_json(data, FakePlan.from_json)


def test_the_plot_is_repeatable_and_labelled(tmp_path):
    pytest.importorskip("matplotlib")
    frontier = make_frontier(*CURVE, references={"data": make_plan(50, 2)}, memory_limit_bytes=70 * GIB)
    for name in ("a.svg", "b.svg", "c.png"):
        frontier.plot(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    svg = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(svg)
    for label in ("leanest", "knee", "fastest", "data", "memory limit"):
        assert f"<!-- {label} -->" in svg
    with pytest.raises(ArgumentError, match="must end in one of"):
        frontier.plot(tmp_path / "c.txt")


def test_labels_of_a_plot_do_not_overlap():
    """References in one corner, closer together than their names are long."""
    pytest.importorskip("matplotlib")
    from matplotlib.text import Text

    from jaxplan.plans._plot import figure_of

    names = ["data", "zero1", "zero2", "fsdp", "hybrid_fsdp", "megatron", "megatron_sequence", "data2_tensor4"]
    references = {name: make_plan(8 + i % 3, 6 + 0.4 * i, name) for i, name in enumerate(names)}
    figure = figure_of(make_frontier(*CURVE, references=references), "knee")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the lines to the markers
    assert {text.get_text() for text in axes.texts} == {*names, "leanest", "knee", "fastest"}
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert axes.get_xlabel() == "peak memory per device (GiB)" and axes.get_ylabel() == "time of a step (ms)"
    ticks = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert "10" in ticks and all(float(tick) for tick in ticks)


@pytest.mark.parametrize("limit_gib", [80, 2000])
def test_the_legend_of_a_plot_is_inside_the_picture_and_above_the_axes(limit_gib, monkeypatch):
    pytest.importorskip("matplotlib")
    from jaxplan.plans._plot import figure_of

    monkeypatch.setattr(FakePlan, "verified", None, raising=False)
    monkeypatch.setattr(FakePlan, "memory_interval_bytes", (GIB, 2 * GIB))
    references = {"data": make_plan(9, 6, "data")}
    figure = figure_of(make_frontier(*CURVE, references=references, memory_limit_bytes=limit_gib * GIB), "knee")
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 5
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    assert not box.overlaps(axes.get_window_extent())


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(MissingExtraError, match=r"jaxplan\[plot\]"):
        make_frontier(*CURVE).plot(tmp_path / "f.svg")


def test_a_frontier_and_a_plan_print_as_one_line():
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    frontier = jaxplan.plan(lambda x: x @ x, x, topology="h100:8")
    assert repr(frontier).startswith("Frontier(") and len(repr(frontier)) < 200
    assert repr(frontier.fastest()).startswith("Plan(") and len(repr(frontier.fastest())) < 300
