"""Layers that normalise every row by itself need nothing."""

import pytest

from layers.normalized import LAYERS, assert_trains_as_one, data, model_of

KINDS = {
    "layer": lambda: LAYERS.LayerNormalization(),
    "group": lambda: LAYERS.GroupNormalization(groups=2),
    "unit": lambda: LAYERS.UnitNormalization(),
    "spectral": lambda: LAYERS.SpectralNormalization(LAYERS.Dense(3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_layer(kind):
    assert_trains_as_one(model_of((4, 6), KINDS[kind]), 3, *data((4, 6)))
