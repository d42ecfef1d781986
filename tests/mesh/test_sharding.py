import math

import pytest

from jaxplan import JaxplanError
from jaxplan.mesh import Sharding, Topology
from jaxplan.mesh._axes import prime_factors

AXES = Topology.parse("h100:2x4").axes


@pytest.mark.parametrize("count", [1, 2, 6, 8, 12, 97, 360])
def test_prime_factors_are_descending_primes(count: int) -> None:
    factors = prime_factors(count)
    assert math.prod(factors) == count
    assert all(p > 1 and all(p % d for d in range(2, p)) for p in factors)
    assert list(factors) == sorted(factors, reverse=True)


def test_axes_are_named_by_level_outermost_first() -> None:
    assert [(a.name, a.size, a.level) for a in Topology.parse("h100:2x6").axes] == [
        ("node", 2, 0),
        ("gpu0", 3, 1),
        ("gpu1", 2, 1),
    ]


def test_local_shape_and_text() -> None:
    sharding = Sharding(((0, 2), ()), (1,))
    assert sharding.num_splits(AXES) == (4, 1)
    assert sharding.local_shape((8, 5), AXES) == (2, 5)
    assert sharding.describe(AXES) == "(node gpu1),-|+gpu0"
    assert repr(sharding) == "(0 2),-|+1"
    assert not sharding.divides((6, 5), AXES)
    assert not sharding.divides((8, 5, 1), AXES)


def test_shardings_are_hashable() -> None:
    assert Sharding(((0,), ()), (2, 1)) == Sharding(((0,), ()), (1, 2))
    assert len({Sharding(((0, 1),)), Sharding(((1, 0),)), Sharding(((0, 1),))}) == 2
    assert Sharding.replicated(2) == Sharding(((), ()))


def test_partition_spec_is_the_same_sharding_in_jax() -> None:
    """The piece of each device, as JAX computes it, is the one that row-major counting of the axes gives."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding

    mesh = Mesh(np.array(jax.devices()[:8]).reshape([a.size for a in AXES]), [a.name for a in AXES])
    sharding = Sharding(((2, 0), (1,)))
    pieces = NamedSharding(mesh, sharding.partition_spec(AXES)).devices_indices_map((8, 8))
    for (n0, g0, g1), device in np.ndenumerate(mesh.devices):
        rows, columns = pieces[device]
        assert (rows.start, columns.start) == ((2 * g1 + n0) * 2, g0 * 4)


def test_errors() -> None:
    with pytest.raises(JaxplanError, match="uses an axis twice"):
        Sharding(((0,), (0,)))
    with pytest.raises(JaxplanError, match=r"partial over \['gpu1'\]"):
        Sharding(((0,),), (2,)).partition_spec(AXES)
    with pytest.raises(JaxplanError, match="does not divide"):
        Sharding(((0,),)).local_shape((3,), AXES)
