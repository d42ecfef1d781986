"""The HTML report: complete, without network, and drawn by a browser."""

from __future__ import annotations

import builtins
import json
import shutil
import subprocess
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import jaxplan
from jaxplan.cli._main import main
from jaxplan.errors import ArgumentError, MissingExtraError
from jaxplan.mesh import Sharding, Topology
from jaxplan.plans._report import figure_of
from jaxplan.plans._report_data import cut_of

pytest.importorskip("plotly")
pytest.importorskip("jinja2")


class Page(HTMLParser):
    """Rows of the table of points, everything that a browser would load, and the data."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.loads, self.scripts, self.open = [], [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loads += [value for name, value in attrs if name in ("src", "href", "action", "data") and value]
        if tag == "tr" and "data-index" in found:
            self.rows.append((found["class"], int(found["data-index"])))
        if tag not in ("meta", "br", "link", "img"):
            self.open.append((tag, found.get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            self.scripts[self.open[-1][1]] = data


@pytest.fixture(scope="module")
def frontier():
    def step(params, batch):
        def loss(params):
            return jnp.mean((jnp.tanh(batch["x</script>"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    params = {"up": shape(1024, 4096), "down": shape(4096, 1024)}
    batch = {"x</script>": shape(2048, 1024), "y": shape(2048, 1024)}
    return jaxplan.plan(step, params, batch, topology="h100:8", donate_argnums=(0,))


@pytest.fixture(scope="module")
def file(frontier, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    frontier.report(path, choose="leanest")
    return path


def test_the_page_loads_nothing_and_has_a_row_for_every_plan(frontier, file):
    page = Page(file.read_text(encoding="utf-8"))
    assert page.open == [] and page.loads == []
    assert [kind for kind, _ in page.rows].count("point") == len(frontier)
    assert [kind for kind, _ in page.rows].count("reference") == len(frontier.references)
    plans = json.loads(page.scripts["data"])
    shown = {index for _, index in page.rows if index >= 0}  # a reference may be a point too
    assert sorted(shown) == list(range(len(plans)))
    assert plans[0]["label"].startswith("#0 leanest")


def test_references_and_choices_are_named_in_the_picture(frontier):
    figure = figure_of(frontier, [frontier.leanest()])
    names = {name for of in figure.layout.annotations for name in of.text.split(", ")}
    assert names == {*frontier.references, "leanest", "knee", "fastest"}


def test_the_data_are_those_of_the_plans(frontier, file):
    plan = json.loads(Page(file.read_text(encoding="utf-8")).scripts["data"])[0]
    leanest = frontier.leanest()
    assert {leaf["path"] for leaf in plan["arguments"]} == {
        "params/up", "params/down", "batch/x</script>", "batch/y"
    }  # fmt: skip
    assert plan["summary"] == leanest.summary and plan["has_program"]
    assert plan["edges"] and all("test_report.py" in row[-1] for row in plan["edges"] if row[-1])
    assert any("dot_general" in leaf["what"] for leaf in plan["activations"])
    assert plan["held"] and all(row[-1] for row in plan["held"])
    assert plan["difference"]["reference"] in frontier.references
    highest = max(map(sum, zip(*(part["sizes"] for part in plan["curve"]["parts"]), strict=True)))
    assert highest == pytest.approx(leanest.simulate().memory_bytes / 2**20, rel=1e-3)


def test_a_loaded_frontier_has_a_report_too(frontier, tmp_path):
    frontier.save(tmp_path / "f.json")
    assert main(["show", str(tmp_path / "f.json"), "--report", str(tmp_path / "f.html")]) == 0
    plan = json.loads(Page((tmp_path / "f.html").read_text(encoding="utf-8")).scripts["data"])[0]
    assert plan["arguments"] and not plan["has_program"] and plan["edges"] == []


@pytest.mark.parametrize("dims", [((0,), ()), ((), (2, 1)), ((1, 0), (2,)), ((), ()), ((2,), (0, 1))])
def test_an_array_is_cut_as_jax_cuts_it(dims):
    """Against the devices of a NamedSharding: one block of the grid is one slice of the array."""
    topology, layout = Topology.parse("h100:2x4"), Sharding(dims)
    cells = cut_of(layout, ["", ""], topology)["cells"]
    devices = np.array(jax.devices()[:8]).reshape([axis.size for axis in topology.axes])
    mesh = Mesh(devices, tuple(axis.name for axis in topology.axes))
    sharding = NamedSharding(mesh, layout.partition_spec(topology.axes))
    blocks: dict[tuple, set[int]] = {}
    for device, index in sharding.devices_indices_map((8, 8)).items():
        start = tuple(part.start or 0 for part in index)
        blocks.setdefault(start, set()).add(list(devices.flat).index(device))
    expected = [blocks[start] for start in sorted(blocks)]
    drawn = [{d for run in cell.split(", ") for d in _run(run)} for row in cells for cell in row]
    assert drawn == expected


def test_the_columns_of_a_matrix_are_drawn_as_columns():
    topology = Topology.parse("h100:4")
    assert cut_of(Sharding(((), (0, 1))), ["rows", "columns"], topology)["cells"] == [["0", "1", "2", "3"]]
    assert cut_of(Sharding(((0,), (1,))), ["rows", "columns"], topology)["cells"] == [["0", "1"], ["2", "3"]]


def _run(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def test_notebooks_show_escaped_tables(frontier):
    found = Page(frontier._repr_html_())
    assert found.open == []
    assert frontier._repr_html_().count("<tr>") == 1 + len(frontier) + len(frontier.references)
    text = frontier.leanest()._repr_html_()
    assert Page(text).open == []
    assert "batch/x&lt;/script&gt;" in text and "</script>" not in text
    assert str(frontier.leanest().in_specs[0]["up"]).replace("PartitionSpec", "P") in text.replace("&#x27;", "'")


def test_bad_paths_and_missing_libraries_are_named(frontier, tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match="must end in"):
        frontier.report(tmp_path / "report.txt")
    real_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "plotly":
            raise ImportError(name, name="plotly")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"(?s)needs plotly.*jaxplan\[plot\]"):
        frontier.report(tmp_path / "report.html")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw the page")
def test_a_browser_draws_the_page_and_a_click_changes_the_plan(frontier, file, tmp_path):
    """After a click on the point of the second plan told, everything below the picture is of that plan."""
    text = file.read_text(encoding="utf-8")
    second = json.loads(Page(text).scripts["data"])[1]
    click = """<script>window.addEventListener("load", () =>
        setTimeout(() => picture.emit("plotly_click", {points: [{customdata: 1}]}), 500));
      window.addEventListener("load", () => setTimeout(() => {
        const boxes = Array.from(picture.querySelectorAll(".annotation-text"), of => of.getBoundingClientRect());
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        const pairs = boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => meet(a, b)));
        document.title = `${boxes.length} names, ${pairs.length} pairs of them overlap`;
      }, 1000));</script>"""
    clicked = tmp_path / "clicked.html"
    clicked.write_text(text.replace("</body>", f"{click}</body>"), encoding="utf-8")
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1280,1000", "--virtual-time-budget=4000", "--dump-dom", clicked.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    picture, told = done.stdout.split('<main id="plan">')
    assert "main-svg" in picture
    num_names, _, rest = picture.partition("<title>")[2].partition(" ")
    assert int(num_names) > 3 and rest.startswith("names, 0 pairs of them overlap")
    assert f"{second['label']}: {second['time']} a step" in told
    for title in ("Memory at the peak", "The most expensive transfers", "From the nearest reference"):
        assert title in told
