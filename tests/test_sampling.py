"""The mark `sample`: every run tries some parameters of a test, `make test-all` the others."""

import pytest

from tests.conftest import _beside_samples


class Item:
    """A collected test, as far as the hook looks at it."""

    def __init__(self, nodeid: str, **marks: int) -> None:
        self.nodeid, self._marks = nodeid, marks

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return getattr(pytest.mark, name)(self._marks[name]).mark if name in self._marks else None


def left_of(*items: Item) -> list[str]:
    return [item.nodeid for item in _beside_samples([*items])]  # type: ignore[list-item]


@pytest.mark.parametrize(("number", "keep"), [(10, 3), (3, 1), (4, 4), (2, 5)])
def test_so_many_are_kept_the_first_among_them(number: int, keep: int) -> None:
    left = left_of(*[Item(f"a.py::test[{i}]", sample=keep) for i in range(number)])
    assert len(left) == max(0, number - keep) and "a.py::test[0]" not in left


def test_each_test_has_its_own_sample_and_others_are_left_alone() -> None:
    ones = [Item(f"a.py::one[{i}]", sample=1) for i in range(2)]
    others = [Item("b.py::one[0]", sample=1), Item("a.py::plain"), Item("a.py::two[0]", sample=1, slow=0)]
    assert left_of(*ones, *others) == ["a.py::one[1]"]
