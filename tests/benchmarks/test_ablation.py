"""A sample of the predictions of reference plans is as saved, to the byte; `benchmarks.accuracy.ablation` has all."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.ablation import differences, predictions, read_saved
from tests.versions import TRACED_OTHERWISE


@TRACED_OTHERWISE
@pytest.mark.parametrize(("model", "topology"), [("gpt", "h100:8"), ("gpt", "v5e:2x4"), ("dlrm", "h100:2x8")])
def test_predictions_are_the_saved_ones(model: str, topology: str) -> None:
    """A change that is meant saves them anew: ``python -m benchmarks.accuracy.ablation --save``."""
    saved = {key: value for key, value in read_saved().items() if key[:2] == (model, topology)}
    assert saved
    assert list(differences(saved, dict(predictions([model], [topology])), {})) == []
