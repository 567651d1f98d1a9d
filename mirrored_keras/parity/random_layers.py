"""Which layers of a model draw random numbers while it is trained."""

import keras

from mirrored_keras.replica import private

_RATES = ("rate", "dropout", "recurrent_dropout", "stddev")


def drawing(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the layers that draw.

    Args:
        model: The model.

    Returns:
        Layers with a seed generator, but for those whose rates are all 0, as in an LSTM by default.
    """
    return [layer for layer in private.all_layers(model) if private.seed_generators_of(layer) and _draws(layer)]


def _draws(layer):
    rates = [getattr(layer, name) for name in _RATES if isinstance(getattr(layer, name, None), (int, float))]
    return not rates or any(rates)
