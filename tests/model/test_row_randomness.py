"""With randomness="row", N replicas draw for every row of the global batch what one replica draws."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel, SetupError
from model.regression import assert_same_weights, made_under

pytestmark = pytest.mark.table(every=3)

LAYERS = keras.layers
ROWS, BATCH = 7, 5  # on three replicas 2, 2 and 1 rows, and 1, 1 and 0 in the last batch
IMAGE = (6, 6, 3)


IN_A_GRAPH = ("RandomFlip", "RandomTranslation", "RandomContrast")


def with_attention(layer):
    class SelfAttention(LAYERS.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layer()

        def call(self, inputs, training=False):
            mask = keras.ops.any(inputs > -0.5, axis=-1)
            if isinstance(self.inner, LAYERS.MultiHeadAttention):
                return self.inner(inputs, inputs, training=training)
            return self.inner([inputs, inputs], mask=[mask, mask], training=training)

    return SelfAttention


REGULARISATION = {
    "Dropout": ((5,), lambda: LAYERS.Dropout(0.4)),
    "Dropout, shared over time": ((2, 4), lambda: LAYERS.Dropout(0.4, noise_shape=(None, 1, None))),
    "Dropout, shared over rows": ((5,), lambda: LAYERS.Dropout(0.4, noise_shape=(1, None))),
    "SpatialDropout1D": ((4, 3), lambda: LAYERS.SpatialDropout1D(0.4)),
    "SpatialDropout2D": ((4, 4, 3), lambda: LAYERS.SpatialDropout2D(0.4)),
    "SpatialDropout3D": ((2, 3, 4, 3), lambda: LAYERS.SpatialDropout3D(0.4)),
    "GaussianNoise": ((5,), lambda: LAYERS.GaussianNoise(0.5)),
    "GaussianDropout": ((5,), lambda: LAYERS.GaussianDropout(0.4)),
    "AlphaDropout": ((5,), lambda: LAYERS.AlphaDropout(0.4)),
    "TimeDistributed": ((2, 4), lambda: LAYERS.TimeDistributed(LAYERS.Dropout(0.4))),
    "Attention": ((2, 4), lambda: with_attention(lambda: LAYERS.Attention(dropout=0.4, use_scale=True))()),
    "AdditiveAttention": ((2, 4), lambda: with_attention(lambda: LAYERS.AdditiveAttention(dropout=0.4))()),
    "MultiHeadAttention": ((2, 4), lambda: with_attention(lambda: LAYERS.MultiHeadAttention(2, 3, dropout=0.4))()),
    "nested model": ((5,), lambda: keras.Sequential([LAYERS.Dense(4), LAYERS.Dropout(0.4)])),
    **{
        f"{cell.__name__}, {options}": ((2, 4), lambda cell=cell, options=options: cell(3, **options))
        for cell in (LAYERS.LSTM, LAYERS.GRU, LAYERS.SimpleRNN)
        for options in ({"dropout": 0.4}, {"dropout": 0.3, "recurrent_dropout": 0.4})
    },
    "stacked cells": ((2, 4), lambda: LAYERS.RNN([LAYERS.LSTMCell(3, dropout=0.4), LAYERS.GRUCell(2, dropout=0.3)])),
    "ConvLSTM1D": ((2, 4, 2), lambda: LAYERS.ConvLSTM1D(2, 3, dropout=0.3, recurrent_dropout=0.3)),
    "Bidirectional": ((2, 4), lambda: LAYERS.Bidirectional(LAYERS.LSTM(2, recurrent_dropout=0.4))),
}

VALUES = {"value_range": (0, 1)}
AUGMENTATION = {
    "RandomFlip": {},
    "RandomRotation": {"factor": 0.3},
    "RandomTranslation": {"height_factor": 0.3, "width_factor": 0.3},
    "RandomZoom": {"height_factor": 0.4},
    "RandomContrast": {"factor": 0.6, **VALUES},
    "RandomBrightness": {"factor": 0.6, **VALUES},
    "RandomCrop": {"height": 4, "width": 4},
    "RandomShear": {"x_factor": 0.4, "y_factor": 0.4},
    "RandomPerspective": {"scale": 0.6},
    "RandomErasing": {"scale": (0.1, 0.4), **VALUES},
    "RandomGaussianBlur": {"kernel_size": 3, "sigma": (0.5, 2.0), **VALUES},
    "RandomHue": {"factor": 0.8, **VALUES},
    "RandomSaturation": {"factor": 0.9, **VALUES},
    "RandomColorJitter": {"brightness_factor": 0.4, "contrast_factor": 0.4, "hue_factor": 0.4, **VALUES},
    "RandomColorDegeneration": {"factor": 0.9, **VALUES},
    "RandomSharpness": {"factor": 0.9, **VALUES},
    "RandomPosterization": {"factor": 3, **VALUES},
    "RandomGrayscale": {"factor": 0.5},
    "RandomInvert": {"factor": 0.5, **VALUES},
    "Solarization": {"addition_factor": 0.4, "threshold_factor": 0.4, **VALUES},
}


class InTraining(LAYERS.Layer):
    """Runs a layer as in training, also in `predict`, which then shows its draws row by row."""

    def __init__(self, inner):
        super().__init__(name=f"of_{inner.name}")
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs, training=True)


def rows_drawn(shape, layers, replicas, **compiled):
    def make():
        inputs = keras.Input(shape)
        model = DistributedModel(inputs, {name: InTraining(layer())(inputs) for name, layer in layers.items()})
        model.compile(**{"randomness": "row", **compiled})
        return model

    model = made_under(replicas, make)
    return model, model.predict(data(shape), batch_size=BATCH, verbose=0)


def data(shape, rows=ROWS):
    return np.random.default_rng(5).uniform(size=(rows, *shape)).astype("float32")


def seed_variables(model):
    return [v for v in model.variables if "seed_generator_state" in v.path]


def seed_states(model):
    copies = [getattr(v.value, "values", [v.value]) for v in seed_variables(model)]
    return [[copy.numpy().tolist() for copy in own] for own in copies]


def assert_same_draws(shape, layers, replicas, **compiled):
    one, expected = rows_drawn(shape, layers, None, **compiled)
    assert sum(state[0][1] > 0 for state in seed_states(one)) >= len(layers), "nothing was drawn"
    for count in replicas:
        many, drawn = rows_drawn(shape, layers, count, **compiled)
        for name in layers:
            np.testing.assert_allclose(drawn[name], expected[name], rtol=0, atol=2e-6, err_msg=name)
        for (state,), states in zip(seed_states(one), seed_states(many), strict=True):
            assert states == [state] * count


SHAPES = sorted({shape for shape, _ in REGULARISATION.values()})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_regularisation(shape):
    layers = {name: layer for name, (own, layer) in REGULARISATION.items() if own == shape}
    assert_same_draws(shape, layers, (3,), run_eagerly=True)


def test_augmentation():
    layers = {
        name: lambda name=name, options=options: getattr(LAYERS, name)(**options)
        for name, options in AUGMENTATION.items()
        if hasattr(LAYERS, name)
    }
    assert_same_draws(IMAGE, layers, (3,), run_eagerly=True)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_numbers_of_replicas(replicas):
    layers = {name: REGULARISATION[name][1] for name in ("Dropout", "GaussianNoise", "AlphaDropout")}
    assert_same_draws((5,), layers, (replicas,), run_eagerly=True)


def test_augmentation_in_a_graph():
    layers = {name: lambda name=name: getattr(LAYERS, name)(**AUGMENTATION[name]) for name in IN_A_GRAPH}
    assert_same_draws(IMAGE, layers, (3,))


def network(shape, layers, **compiled):
    def make():
        outputs = inputs = keras.Input(shape)
        for layer in layers:
            outputs = layer()(outputs)
        model = DistributedModel(inputs, LAYERS.Dense(1)(LAYERS.Flatten()(outputs)))
        model.compile(keras.optimizers.SGD(0.05), "mse", **{"randomness": "row", **compiled})
        return model

    return make


def trained(make, replicas, shape, epochs=2):
    model = made_under(replicas, make)
    x, y = data(shape), np.linspace(0.2, 3.0, ROWS, dtype="float32")[:, None]
    losses = model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]
    return model, losses, model.evaluate(x, y, verbose=0)


TRAINED = {
    "dropout": ((5,), [lambda: LAYERS.Dense(4), lambda: LAYERS.Dropout(0.4), lambda: LAYERS.GaussianNoise(0.3)], 3),
    "a replica without rows": ((5,), [lambda: LAYERS.Dense(4), lambda: LAYERS.Dropout(0.4)], 4),
    "recurrent": ((2, 3), [lambda: LAYERS.LSTM(3, dropout=0.3, recurrent_dropout=0.3, unroll=True)], 2),
    "images": (
        IMAGE,
        [lambda: LAYERS.RandomFlip(), lambda: LAYERS.Conv2D(2, 3), lambda: LAYERS.SpatialDropout2D(0.5)],
        3,
    ),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training(name):
    shape, layers, replicas = TRAINED[name]
    one, one_losses, one_loss = trained(network(shape, layers), None, shape)
    many, losses, loss = trained(network(shape, layers), replicas, shape)
    np.testing.assert_allclose([*losses, loss], [*one_losses, one_loss], rtol=5e-6)
    assert_same_weights(one, many)
    assert {tuple(s) for states in seed_states(many) for s in states} == {tuple(s) for (s,) in seed_states(one)}


def test_another_number_of_replicas_goes_on_where_one_left_off():
    shape, layers, _ = TRAINED["dropout"]
    make = network(shape, layers)
    straight, _, _ = trained(make, None, shape, epochs=4)
    first, _, _ = trained(make, 2, shape, epochs=2)
    second = made_under(3, make)
    second.set_weights(first.get_weights())
    second.set_random_state(first.get_random_state())
    x, y = data(shape), np.linspace(0.2, 3.0, ROWS, dtype="float32")[:, None]
    second.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(straight, second)
    assert second.get_random_state() == straight.get_random_state()
    with pytest.raises(SetupError, match="one entry per seed generator"):
        second.set_random_state([])


def test_the_mode_is_saved(tmp_path):
    model = network((5,), [lambda: LAYERS.Dropout(0.4)])()
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").randomness == "row"
    assert "randomness" not in network((5,), [], randomness="replica")().get_compile_config()


class Noise(LAYERS.Layer):
    """An own layer, which draws one number per row."""

    def __init__(self, draws_per_row=None, size=None):
        super().__init__()
        self.size = size
        self.seed_generator = keras.random.SeedGenerator(3)
        if draws_per_row is not None:
            self.draws_per_row = draws_per_row

    def call(self, inputs):
        return inputs + keras.random.normal((self.size or keras.ops.shape(inputs)[0], 1), seed=self.seed_generator)


def test_own_layer_draws_per_row():
    assert_same_draws((5,), {"noise": lambda: Noise(draws_per_row=True)}, (3,))


def test_own_layer_draws_once_for_all_rows():
    assert_same_draws((5,), {"noise": lambda: Noise(draws_per_row=False, size=1)}, (3,))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Noise, "Noise 'noise[_0-9]*' draws random numbers, and nobody can tell"),
        (lambda: LAYERS.AugMix(value_range=(0, 1)), "AugMix .*chooses by Python's `random`"),
        (lambda: LAYERS.MixUp(), "MixUp .*mixes rows"),
        (lambda: LAYERS.RandAugment(value_range=(0, 1)), "RandAugment .*equalises a histogram"),
        (lambda: LAYERS.RandomElasticTransform(0.9, 0.9, value_range=(0, 1)), "RandomElastic.*distorts the first row"),
    ],
    ids=["own", "AugMix", "MixUp", "RandAugment", "RandomElasticTransform"],
)
def test_layer_that_cannot_draw_by_row_says_so(layer, text):
    with pytest.warns(UserWarning, match=f"{text}[^ ]*"):
        rows_drawn((5,) if layer is Noise else IMAGE, {"layer": layer}, 2, run_eagerly=True)


def test_no_warning_with_streams_of_their_own_or_on_one_replica():
    rows_drawn((5,), {"layer": Noise}, 2, randomness="replica", run_eagerly=True)
    rows_drawn((5,), {"layer": Noise}, 1, run_eagerly=True)


class RowsInTheSecondAxis(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = LAYERS.Dropout(0.5)

    def call(self, inputs):
        return keras.ops.transpose(self.dropout(keras.ops.transpose(inputs, (1, 0)), training=True), (1, 0))


def test_rows_that_are_not_the_first_axis_are_refused():
    with pytest.raises(SetupError, match="the first axis of what a random layer is given must be the rows"):
        rows_drawn((4,), {"layer": RowsInTheSecondAxis}, 2, run_eagerly=True)


class TwicePerRow(RowsInTheSecondAxis):
    def call(self, inputs):
        return keras.ops.reshape(self.dropout(keras.ops.reshape(inputs, (-1, 2)), training=True), (-1, 4))


def test_rows_that_are_not_the_first_axis_are_refused_where_their_number_is_open():
    with pytest.raises(tf.errors.InvalidArgumentError, match="the first axis of what a random layer is given"):
        trained(network((4,), [TwicePerRow]), 2, (4,))


class Positions(RowsInTheSecondAxis):
    def call(self, inputs):
        return inputs + self.dropout(keras.ops.ones((1, 4)), training=True)


def test_a_table_that_all_rows_share_is_drawn_once():
    one, _, _ = trained(network((4,), [Positions]), None, (4,), epochs=1)
    many, _, _ = trained(network((4,), [Positions]), 3, (4,), epochs=1)
    assert_same_weights(one, many)


def test_another_word_is_refused():
    with pytest.raises(SetupError, match="`randomness` must be one of"):
        network((5,), [], randomness="rows")()
