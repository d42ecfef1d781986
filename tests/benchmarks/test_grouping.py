"""The cost of sharing a configuration: gradients really are apart, and both plans are compared on one scale."""

from benchmarks.quality.grouping import compare


def test_every_gradient_of_a_contraction_has_a_group_of_its_own() -> None:
    layers = 3
    found = compare("mlp", {"num_layers": layers, "width": 256, "num_classes": 64, "batch_size": 512}, "h100:4")
    # A layer has two gradients, the first only that of its kernel.
    assert found.num_groups[1] - found.num_groups[0] == 2 * layers - 1
    assert found.fastest_cost <= found.worst_cost
    assert abs(found.leanest_cost) < 0.5
