import json

import numpy as np
import pytest

from jaxplan import JaxplanError
from jaxplan.simulate._delta_simulator import DeltaSimulation
from jaxplan.simulate._instant_simulator import InstantSimulation
from jaxplan.simulate._simulated_walk import follow_changes
from jaxplan.simulate._simulator import Buffer, Task, chrome_trace, memory_curve, simulate

SIMULATIONS = pytest.mark.parametrize("start_simulation", [DeltaSimulation, InstantSimulation])


def random_tasks(rng, num_tasks=60, num_streams=4, grid=True):
    tasks = {}
    for number in range(num_tasks):
        tasks[number] = random_task(rng, number, list(tasks), num_streams, grid)
    return tasks


def random_task(rng, number, known, num_streams=4, grid=True):
    """Return a task that needs up to three earlier ones; coarse durations, zero among them, make ties common."""
    earlier = [other for other in known if other < number]
    count = min(len(earlier), int(rng.integers(0, 4)))
    needs = tuple(sorted(int(n) for n in rng.choice(earlier, count, replace=False))) if count else ()
    seconds = float(rng.integers(0, 5)) if grid else float(rng.random())
    return Task(stream=int(rng.integers(num_streams)), seconds=seconds, needs=needs)


def check(timeline):
    """Check the laws of a timeline: needs are met, streams do one thing at a time in order, nobody idles."""
    tasks, start, end = timeline.tasks, timeline.start, timeline.end
    ready = {n: max((end[other] for other in task.needs), default=0.0) for n, task in tasks.items()}
    for stream in {task.stream for task in tasks.values()}:
        line = sorted((ready[n], n) for n, task in tasks.items() if task.stream == stream)
        free = 0.0
        for when, number in line:
            assert start[number] == max(when, free)
            assert end[number] == start[number] + tasks[number].seconds
            free = end[number]


def test_communication_hides_behind_computation_that_does_not_need_it():
    tasks = {
        0: Task(stream=0, seconds=2.0),
        1: Task(stream=1, seconds=3.0, needs=(0,)),  # sends the result of 0
        2: Task(stream=0, seconds=4.0, needs=(0,)),
        3: Task(stream=0, seconds=1.0, needs=(1, 2)),
    }
    timeline = simulate(tasks)
    assert timeline.start == {0: 0.0, 1: 2.0, 2: 2.0, 3: 6.0}
    assert timeline.makespan == 7.0 and timeline.busy_seconds(0) == 7.0


def test_streams_serve_tasks_in_order_of_readiness():
    tasks = {
        0: Task(stream=1, seconds=5.0),
        1: Task(stream=2, seconds=1.0),
        2: Task(stream=0, seconds=10.0, needs=(0,)),
        3: Task(stream=0, seconds=10.0, needs=(1,)),
    }
    assert simulate(tasks).start == {0: 0.0, 1: 0.0, 3: 1.0, 2: 11.0}


@pytest.mark.parametrize("seed", range(20))
def test_timelines_obey_the_rules(seed):
    check(simulate(random_tasks(np.random.default_rng(seed))))


@pytest.mark.parametrize("grid", [True, False])
@SIMULATIONS
@pytest.mark.parametrize("seed", range(15))
def test_delta_equals_full_after_random_changes(seed, grid, start_simulation):
    rng = np.random.default_rng(seed)
    simulation = start_simulation(random_tasks(rng, grid=grid))
    for _ in range(25):
        updates = {}
        for number in rng.choice(80, int(rng.integers(1, 4)), replace=False):
            updates[int(number)] = random_task(rng, int(number), list(simulation.tasks), grid=grid)
        unused = [n for n in simulation.tasks if not any(n in t.needs for t in simulation.tasks.values())]
        gone = [n for n in unused if n not in updates and not any(n in t.needs for t in updates.values())]
        if gone and rng.random() < 0.5:
            updates[gone[0]] = None
        makespan = simulation.change(updates)
        full = simulate(simulation.tasks)
        assert makespan == full.makespan
        assert simulation.timeline() == full


@SIMULATIONS
@pytest.mark.parametrize("seed", range(15))
def test_undo_restores_the_timeline(seed, start_simulation):
    rng = np.random.default_rng(seed)
    simulation = start_simulation(random_tasks(rng))
    for _ in range(20):
        before, makespan = simulation.timeline(), simulation.makespan
        updates = {
            int(n): random_task(rng, int(n), list(simulation.tasks)) for n in rng.choice(70, 2, replace=False)
        }
        simulation.change(updates)
        simulation.undo()
        assert (
            simulation.timeline() == before == simulate(simulation.tasks) and simulation.makespan == makespan
        )
        simulation.change(updates)
        assert simulation.timeline() == simulate(simulation.tasks)


def layers(rng, num_layers, width):
    """Return parts of layers, one a stream, each of which needs two of the layer before; some layers take no time.

    Unequal layers are sent over links of their own, so that parts of two layers may meet on a stream.
    """
    tasks = {}
    for layer in range(num_layers):
        seconds = float(rng.choice([0.0, 0.1, 0.3, 0.7]))
        shift = int(rng.integers(width))
        for part in range(width):
            number = 100 * layer + part
            first = 100 * (layer - int(rng.integers(1, 3)))
            needs = tuple(sorted({first + part, first + (part + shift) % width})) if layer > 1 else ()
            tasks[number] = Task(stream=part + width * int(layer % 3 == 0), seconds=seconds, needs=needs)
    return tasks


@SIMULATIONS
@pytest.mark.parametrize("seed", range(6))
def test_delta_follows_whole_layers(seed, start_simulation):
    """Layers come, go, change and are taken back, in the middle, at the start and at the end; many tasks tie."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(4, 24))
    simulation = start_simulation(layers(rng, 10, width))
    for _ in range(12):
        layer, before = int(rng.choice([0, 1, 4, 8, 9])), simulation.timeline()
        seconds = float(rng.choice([0.0, 0.05, 0.3, 2.0]))
        updates: dict[int, Task | None] = {
            n: Task(stream=task.stream, seconds=seconds, needs=task.needs)
            for n, task in simulation.tasks.items()
            if n // 100 == layer
        }
        extra, source = 100 * (layer + 1) - 1, int(rng.choice(sorted(simulation.tasks)))
        if extra in simulation.tasks:
            updates[extra] = None
        elif source < extra:
            updates[extra] = Task(stream=99, seconds=0.2, needs=(source,))
        users = [n for n, task in simulation.tasks.items() if extra in task.needs]
        updates |= {n: Task(stream=1, seconds=0.1) for n in users}
        assert simulation.change(updates) == simulate(simulation.tasks).makespan
        assert simulation.timeline() == simulate(simulation.tasks)
        if rng.random() < 0.5:
            simulation.undo()
            assert simulation.timeline() == before == simulate(simulation.tasks)


@SIMULATIONS
def test_tasks_appear_in_and_vanish_from_an_empty_graph(start_simulation):
    simulation = start_simulation({})
    assert simulation.makespan == 0.0 and simulation.change({}) == 0.0
    assert simulation.change({7: Task(stream=3, seconds=2.0)}) == 2.0
    assert simulation.change({7: None, 8: Task(stream=3, seconds=1.0)}) == 1.0
    assert simulation.change({8: None}) == 0.0
    simulation.undo()
    assert simulation.timeline() == simulate({8: Task(stream=3, seconds=1.0)})


@SIMULATIONS
def test_simultaneous_tasks_run_in_order_of_number(start_simulation):
    """Task 1 takes no time, so task 2 is ready together with task 5, on its stream."""
    tasks = {
        0: Task(stream=0, seconds=1.0),
        1: Task(stream=1, seconds=0.0, needs=(0,)),
        2: Task(stream=2, seconds=4.0, needs=(1,)),
        5: Task(stream=2, seconds=3.0, needs=(0,)),
    }
    simulation = start_simulation(tasks)
    assert simulation.timeline().start == {0: 0.0, 1: 1.0, 2: 1.0, 5: 5.0}
    assert simulation.change({1: Task(stream=1, seconds=1.0, needs=(0,))}) == 8.0
    assert simulation.timeline().start == {0: 0.0, 1: 1.0, 2: 4.0, 5: 1.0}


def test_graphs_with_simultaneous_tasks_are_followed_by_instants():
    alone = {n: Task(stream=0, seconds=1.0) for n in range(100)}
    together = {n: Task(stream=n, seconds=1.0) for n in range(100)}
    assert isinstance(follow_changes(alone), DeltaSimulation)
    assert isinstance(follow_changes(together), InstantSimulation)
    assert follow_changes({}).makespan == 0.0


@SIMULATIONS
def test_delta_takes_only_later_tasks_again(start_simulation):
    tasks = {n: Task(stream=n % 8, seconds=1.0, needs=(n - 8,) if n >= 8 else ()) for n in range(800)}
    simulation = start_simulation(tasks)
    simulation.change({795: Task(stream=3, seconds=2.0, needs=(787,))})
    assert simulation.num_touched == 5
    simulation.change({400: Task(stream=0, seconds=2.0, needs=(392,))})
    assert simulation.num_touched == 400


def test_memory_lives_from_its_maker_to_its_last_user():
    timeline = simulate(
        {
            0: Task(stream=0, seconds=1.0),
            1: Task(stream=0, seconds=2.0, needs=(0,)),
            2: Task(stream=0, seconds=1.0),
        }
    )
    # Task 2 is ready at once and runs second.
    buffers = [
        Buffer(num_bytes=100),
        Buffer(num_bytes=10, made_by=0, used_by=(1,)),
        Buffer(num_bytes=1, made_by=2, used_by=()),
    ]
    assert memory_curve(timeline, buffers) == [(0.0, 110), (1.0, 111), (2.0, 110), (4.0, 100)]


def test_trace_events_are_json_with_microseconds():
    timeline = simulate({0: Task(stream=0, seconds=1.5), 1: Task(stream=7, seconds=0.5, needs=(0,))})
    trace = json.loads(json.dumps(chrome_trace(timeline, "task {}".format, "stream {}".format)))
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {0: "stream 0", 7: "stream 7"}
    assert [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"] == [
        ("task 0", 0.0, 1.5e6),
        ("task 1", 1.5e6, 0.5e6),
    ]


def test_impossible_graphs_are_refused():
    with pytest.raises(JaxplanError, match="task 0 needs task 1"):
        simulate({0: Task(stream=0, seconds=1.0, needs=(1,)), 1: Task(stream=0, seconds=1.0)})
    with pytest.raises(JaxplanError, match="takes -1"):
        simulate({0: Task(stream=0, seconds=-1.0)})
    for start_simulation in (DeltaSimulation, InstantSimulation):
        simulation = start_simulation(
            {0: Task(stream=0, seconds=1.0), 1: Task(stream=0, seconds=1.0, needs=(0,))}
        )
        with pytest.raises(JaxplanError, match="task 1 needs it"):
            simulation.change({0: None})


@SIMULATIONS
def test_a_refused_change_changes_nothing(start_simulation):
    simulation = start_simulation({0: Task(stream=0, seconds=1.0), 1: Task(stream=0, seconds=1.0, needs=(0,))})
    before = simulation.timeline()
    for updates in (
        {0: None},
        {1: Task(stream=0, seconds=2.0, needs=(5,))},
        {0: None, 2: Task(stream=1, seconds=1.0)},
    ):
        with pytest.raises(JaxplanError):
            simulation.change(updates)
        assert simulation.timeline() == before
    assert simulation.change({0: None, 1: Task(stream=0, seconds=3.0)}) == 3.0
