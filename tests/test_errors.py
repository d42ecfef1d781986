"""The public names resolve, and one except clause catches every error of jaxplan."""

import inspect

import pytest

import jaxplan
from jaxplan import errors as _errors


def test_every_error_is_public_and_derives_from_the_base():
    errors = {
        name: kind for name, kind in vars(_errors).items() if inspect.isclass(kind) and name.endswith("Error")
    }
    assert len(errors) > 5
    for name, kind in errors.items():
        assert issubclass(kind, jaxplan.JaxplanError)
        assert getattr(jaxplan, name) is kind


@pytest.mark.parametrize(
    "name", ["auto", "plan", "load", "Plan", "Frontier", "Topology", "register_rule", "__version__"]
)
def test_the_public_names_resolve(name):
    assert getattr(jaxplan, name) is not None
    assert name in dir(jaxplan)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = jaxplan.nothing


def test_infeasible_carries_its_numbers():
    error = jaxplan.InfeasibleError("no", smallest_memory_bytes=3, memory_parts={"batch": 3})
    assert (error.smallest_memory_bytes, error.memory_parts) == (3, {"batch": 3})
    assert jaxplan.InfeasibleError("no").memory_parts == {}
