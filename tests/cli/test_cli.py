"""The command line: arguments for `jaxplan.plan`, output, errors and exit codes."""

import importlib
import subprocess
import sys
import textwrap

import pytest

import jaxplan
from jaxplan.cli import _main as _cli
from jaxplan.errors import InfeasibleError, TopologyError
from jaxplan.plans._frontier import Frontier
from tests.fake_plan import GIB, FakePlan


@pytest.fixture
def calls(monkeypatch):
    """Replace `jaxplan.plan` by a recorder that returns a frontier of two plans."""
    recorded = []

    def plan(step, *args, progress, **options):
        recorded.append((step, args, options))
        progress("trace")
        return Frontier.from_plans(
            [
                FakePlan(name="lean", time_seconds=0.2, memory_bytes=GIB),
                FakePlan(name="fast", time_seconds=0.1, memory_bytes=2 * GIB, faithful=False),
            ]
        )

    monkeypatch.setitem(vars(jaxplan), "plan", plan)
    return recorded


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `user_step` in the working directory."""
    source = """
        class Steps:
            @staticmethod
            def other(x): return x

        def step(x, y): return x

        def make_args(): return 1, 2

        def make_one(): return {"x": 1}

        def make_options(): return {"pins": "fsdp"}

        def wrong_options(): return {"topology": "h100:8"}

        def broken(): raise RuntimeError("first line\\nsecond line")

        number = 3
    """
    (tmp_path / "user_step.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "user_step", raising=False)
    importlib.invalidate_caches()
    return tmp_path


def test_plan_passes_everything_on_and_prints_the_frontier(calls, module, capsys):
    command = "plan user_step:step --args user_step:make_args --topology h100:2x8 --memory 40GiB --solver ft"
    code = _cli.main([*command.split(), "--donate", "0", "1", "--static", "1", "--explain"])
    assert code == 0
    ((step, args, options),) = calls
    assert step is sys.modules["user_step"].step
    assert args == (1, 2)
    assert options == {
        "topology": "h100:2x8",
        "memory": 40 * GIB,
        "solver": "ft",
        "donate_argnums": (0, 1),
        "static_argnums": (1,),
    }
    out, err = capsys.readouterr()
    assert "2 plans that nothing beats" in out
    assert "chosen: #1 (fastest), 100 ms a step, 2.00 GiB per device" in out
    assert "explanation of fast" in out
    assert err.startswith("planned: trace ")


@pytest.mark.parametrize(("given", "value"), [("4", 4), ("look", True), ("none", False)])
def test_slices_of_the_batch_and_further_options_are_passed_on(calls, module, given, value):
    command = f"plan user_step:step --args user_step:make_args --microbatches {given}"
    assert _cli.main([*command.split(), "--options", "user_step:make_options"]) == 0
    assert calls[0][2]["microbatches"] is value or calls[0][2]["microbatches"] == value
    assert calls[0][2]["pins"] == "fsdp"


@pytest.mark.parametrize("given", [["--microbatches", "four"], ["--options", "user_step:wrong_options"]])
def test_options_that_cannot_be_read_are_one_error(calls, module, capsys, given):
    command = "plan user_step:step --args user_step:make_args"
    assert _cli.main([*command.split(), *given]) == 2
    assert "expected" in capsys.readouterr().err and not calls


def test_defaults_and_a_path_instead_of_a_module(calls, module):
    path = str(module / "user_step.py")
    assert _cli.main(["plan", f"{path}:Steps.other", "--args", f"{path}:make_one"]) == 0
    ((step, args, options),) = calls
    assert step("echo") == "echo"
    assert args == ({"x": 1},)
    assert options["topology"] is options["memory"] is None
    assert options["solver"] == "auto"
    assert options["donate_argnums"] is None and options["static_argnums"] == ()


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("2", {"static_argnums": (2,)}),
        ("-1 train", {"static_argnums": (-1,), "static_argnames": ("train",)}),
        ("train depth", {"static_argnums": (), "static_argnames": ("train", "depth")}),
    ],
)
def test_settings_are_named_by_number_or_name(calls, module, given, options):
    command = f"plan user_step:step --args user_step:make_args --static={given.split()[0]}"
    if len(given.split()) > 1:
        command = f"plan --args user_step:make_args --static {given} --topology h100:8 -- user_step:step"
    assert _cli.main(command.split()) == 0
    assert {name: value for name, value in calls[0][2].items() if name.startswith("static")} == options


@pytest.mark.parametrize(("given", "donated"), [([], None), (["--donate"], ()), (["--donate", "0", "1"], (0, 1))])
def test_donation_is_the_default_of_plan_unless_arguments_are_named(calls, module, given, donated):
    command = "plan user_step:step --args user_step:make_args"
    assert _cli.main([*command.split(), *given]) == 0
    assert calls[0][2]["donate_argnums"] == donated


@pytest.mark.parametrize("choose, name, exit_code", [("leanest", "lean", 0), ("1", "fast", 4)])
def test_files_and_audit(calls, module, capsys, choose, name, exit_code):
    command = "plan user_step:step --args user_step:make_args --audit --save f.json --plan p.json --choose"
    assert _cli.main([*command.split(), choose]) == exit_code
    assert (module / "p.json").read_text() == name
    assert '"schema": "jaxplan.frontier"' in (module / "f.json").read_text()
    assert "predicted beside compiled" in capsys.readouterr().out


def test_a_reference_is_a_choice_wherever_a_point_is(module, capsys):
    source = """
        import jax

        def step(w, x):
            return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

        def make_args():
            return jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32")
    """
    (module / "real_step.py").write_text(textwrap.dedent(source))
    step = "real_step.py:step --args real_step.py:make_args"
    files = "--save f.json --plan p.json --trace t.json --plot f.svg"
    command = f"plan {step} --topology cpu:4 --donate 0 --choose fsdp --explain {files}"
    assert _cli.main(command.split()) == 0
    assert "chosen: fsdp (reference), " in capsys.readouterr().out
    assert all((module / name).stat().st_size > 0 for name in ("f.json", "p.json", "t.json", "f.svg"))
    frontier = jaxplan.load(module / "f.json")
    assert isinstance(frontier, Frontier)
    plan = jaxplan.load(module / "p.json")
    assert isinstance(plan, jaxplan.Plan)
    assert plan.to_json() == frontier.references["fsdp"].to_json()
    assert _cli.main(["show", "f.json", "--choose", "fsdp", "--explain", "--plot", "g.svg"]) == 0
    assert "chosen: fsdp (reference), " in capsys.readouterr().out
    assert _cli.main(f"audit f.json {step} --choose fsdp".split()) in (0, 4)
    assert _cli.main(f"export f.json --step {step} --choose fsdp -o s.py".split()) == 0
    assert str(plan.in_specs["[0]"]) in (module / "s.py").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--choose fdsp", "choose='fdsp' is no choice from a frontier. expected: 'fastest', 'knee', 'leanest', 'data'"),
        ("--choose data3_tensor5 --topology h100:8", "a strategy of another topology than h100:8"),
        ("--save no/such/f.json", "cannot write 'no/such/f.json'"),
        ("--plan .", "cannot write '.'"),
        ("--trace user_step.py/t.json", "cannot write 'user_step.py/t.json'"),
        ("--plot f.gif", "must end in one of .svg"),
        ("--report f.txt", "must end in .html"),
        ("--plot no/such/f.svg", "cannot write 'no/such/f.svg'"),
        ("--save a.json --plan ./a.json", "--save and --plan both name a.json"),
    ],
)
def test_what_cannot_be_chosen_or_written_is_refused_before_the_search(calls, module, capsys, options, message):
    before = _files(module)
    assert _cli.main(["plan", "user_step:step", "--args", "user_step:make_args", *options.split()]) != 0
    assert message in capsys.readouterr().err
    assert not calls
    assert _files(module) == before


def _files(folder):
    """All but the compiled form of a module that is imported from there."""
    return sorted(path for path in folder.iterdir() if path.name != "__pycache__")


def test_a_missing_plot_library_is_said_before_the_search(calls, module, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert _cli.main(["plan", "user_step:step", "--args", "user_step:make_args", "--plot", "f.svg"]) == 1
    assert "needs matplotlib" in capsys.readouterr().err
    assert not calls


def test_a_frontier_is_saved_although_it_lacks_the_choice(calls, module, capsys):
    command = "plan user_step:step --args user_step:make_args --topology h100:8 --save f.json --choose fsdp"
    assert _cli.main(command.split()) == 2
    assert "choose='fsdp' is no point of this frontier" in capsys.readouterr().err
    assert '"schema": "jaxplan.frontier"' in (module / "f.json").read_text()


def test_a_saved_plan_is_audited(module, capsys):
    source = """
        import jax

        def step(w, x):
            return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

        def make_args():
            return jax.ShapeDtypeStruct((512, 512), "float32"), jax.ShapeDtypeStruct((1024, 512), "float32")
    """
    (module / "real_step.py").write_text(textwrap.dedent(source))
    step = "real_step.py:step --args real_step.py:make_args"
    assert _cli.main([*f"plan {step} --topology cpu:8 --donate 0 --save f.json --plan p.json".split()]) == 0
    capsys.readouterr()
    code = _cli.main(f"audit f.json {step} --choose leanest --cache programs".split())
    out, _ = capsys.readouterr()
    assert ("memory" in out, "contractions" in out, "temporaries" in out) == (True, True, True)
    assert code in (0, 4)  # agrees, or differs
    assert len(list((module / "programs").iterdir())) == 1
    assert _cli.main(f"audit p.json {step} --choose leanest".split()) == 2
    assert "holds one plan: --choose needs a frontier" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "args", "options", "exit_code", "message"),
    [
        ("nothing", "user_step:make_args", "", 2, "names no function"),
        ("no_such_module:f", "user_step:make_args", "", 2, "there is no module 'no_such_module'"),
        ("no_such.py:f", "user_step:make_args", "", 2, "there is no file"),
        (
            "user_step:stop",
            "user_step:make_args",
            "",
            2,
            "there is no 'stop'; expected one of Steps, broken,",
        ),
        ("user_step:number", "user_step:make_args", "", 2, "is not a function: its type is int"),
        ("user_step:step", "user_step:broken", "", 2, "RuntimeError: first line second line"),
        ("user_step:step", "user_step:make_args", "--memory 40", 2, "memory='40' is not an amount of memory"),
        ("user_step:step", "user_step:make_args", "--choose best", 2, "choose='best' is no choice"),
        ("user_step:step", "user_step:make_args", "--choose 7", 2, "choose='7' is no point"),
    ],
)
def test_an_error_is_one_line(calls, module, capsys, step, args, options, exit_code, message):
    assert _cli.main(["plan", step, "--args", args, *options.split()]) == exit_code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("jaxplan: error: ")
    assert message in last
    with pytest.raises(Exception, match=r"\S"):
        _cli.main(["plan", step, "--args", args, *options.split(), "--debug"])


@pytest.mark.parametrize(
    "error, exit_code", [(InfeasibleError("too\n  small"), 3), (TopologyError("what"), 2)]
)
def test_exit_codes(module, monkeypatch, capsys, error, exit_code):
    def plan(*args, **options):
        raise error

    monkeypatch.setitem(vars(jaxplan), "plan", plan)
    assert _cli.main(["plan", "user_step:step", "--args", "user_step:make_args"]) == exit_code
    assert capsys.readouterr().err == f"jaxplan: error: {' '.join(str(error).split())}\n"


def test_wrong_usage_exits_with_two(capsys):
    with pytest.raises(SystemExit) as caught:
        _cli.main(["plan", "user_step:step"])
    assert caught.value.code == 2
    assert "--args" in capsys.readouterr().err


def test_python_dash_m_jaxplan():
    done = subprocess.run(
        [sys.executable, "-m", "jaxplan", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"jaxplan {jaxplan.__version__}\n"


def test_importing_jaxplan_imports_no_jax():
    code = "import sys, jaxplan, jaxplan.cli._main; print('jax' in sys.modules, 'networkx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
