"""Synchronised batch normalisation equals one replica: any split, masks, precisions, layouts."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices import strategy_for
from layers.normalized import LAYERS, assert_one_set_of_states, assert_trains_as_one, data, fitted, model_of
from mirrored_keras import DistributedModel, GlobalBatch, SetupError, SyncBatchNormalization

pytestmark = pytest.mark.table(every=3)


def synchronized(**options):
    return lambda: LAYERS.BatchNormalization(synchronized=True, momentum=0.6, **options)


def positive(x):
    return np.abs(x) + 0.1


KINDS = {
    "two layers": ((4,), [synchronized(), lambda: LAYERS.Dense(5, activation="tanh"), synchronized(scale=False)]),
    "own layer": ((4,), [lambda: SyncBatchNormalization(momentum=0.6, center=False)]),
    "convolution": ((6, 6, 1), [lambda: LAYERS.Conv2D(3, 3), synchronized(), lambda: LAYERS.Activation("relu")]),
    "channels first": ((3, 4, 2), [synchronized(axis=1)]),
    "one channel": ((5, 1), [synchronized()]),
    "activity losses": (
        (4,),
        [lambda: LAYERS.Dense(5, activity_regularizer="l2"), synchronized(), lambda: LAYERS.Dense(3)],
    ),
    "time distributed": ((3, 2), [lambda: LAYERS.TimeDistributed(LAYERS.BatchNormalization(synchronized=True))]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_layer(kind):
    """Batches of 4, 4, 4 and 1 rows: on three replicas 2, 1, 1 and 1, 0, 0."""
    shape, layers = KINDS[kind]
    _, many = assert_trains_as_one(model_of(shape, *layers), 3, *data(shape))
    assert_one_set_of_states(many)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_numbers_of_replicas_in_double_precision(replicas, float64):
    """5 rows, then 1: on four replicas 2, 1, 1, 1 and 1, 0, 0, 0."""
    layers = [lambda: LAYERS.Dense(5, activation="tanh"), synchronized()]
    assert_trains_as_one(model_of((4,), *layers), replicas, *data((4,), rows=6), batch=5)


class WithoutMask(keras.layers.Layer):
    """Ends the mask, so that the loss, which has rules of its own for masks, counts every step."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs):
        return inputs * 1


def masked_model(layer):
    return model_of((4, 3), lambda: LAYERS.Masking(), lambda: LAYERS.Dense(3), layer, WithoutMask)


def masked_data():
    """Sequences of 0 to 4 steps; one of the batches is padding and nothing else."""
    x, y = data((4, 3))
    for row, length in enumerate([4, 0, 1, 3, 0, 0, 0, 0, 2, 4, 1, 1, 3]):
        x[row, length:] = 0
    return x, y


def test_masked_steps_do_not_count(float64):
    _, many = assert_trains_as_one(masked_model(synchronized()), 3, *masked_data())
    assert_one_set_of_states(many)


def test_masked_steps_do_not_count_in_the_own_layer():
    assert_trains_as_one(masked_model(lambda: SyncBatchNormalization(momentum=0.6)), 2, *masked_data())


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 3}])
def test_execution(options):
    shape, layers = KINDS["two layers"]
    assert_trains_as_one(model_of(shape, *layers, **options), 3, *data(shape))


def test_batch_renormalization(float64):
    if "renorm" not in inspect.signature(LAYERS.BatchNormalization.__init__).parameters:
        pytest.skip("this Keras has no batch renormalisation")
    layer = synchronized(renorm=True, renorm_clipping={"rmax": 3, "rmin": 0.3, "dmax": 5})
    assert_trains_as_one(model_of((4,), layer), 3, *data((4,)))


@pytest.mark.parametrize("replicas", [None, 1, 3])
def test_sound_where_the_mean_is_large(replicas):
    """E[x^2] - E[x]^2 in float32 has no correct digit at mean 3000 and deviation 1."""
    x = np.random.default_rng(3).normal(3000, 1, size=(50, 2)).astype("float32")
    make = model_of((2,), lambda: LAYERS.BatchNormalization(synchronized=True, momentum=0.0))
    model, _, _ = fitted(make, replicas, x, np.zeros((50, 1)), batch=50, epochs=1)
    mean, variance = model.layers[1].moving_mean, model.layers[1].moving_variance
    np.testing.assert_allclose(mean.numpy(), x.astype("float64").mean(axis=0), rtol=2e-7)
    # the float32 nearest to 3000 is 1e-4 away; measured 4e-5 on three replicas, stock 3.4
    np.testing.assert_allclose(variance.numpy(), x.astype("float64").var(axis=0), rtol=2e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_statistics_in_float32_under_mixed_precision(policy):
    """The inputs are rounded alike on every replica; the deviation of 100 would overflow float16 when squared."""
    layer = LAYERS.BatchNormalization
    x = (data((4,))[0] * 300).astype("float32")
    results = []
    for replicas in (None, 3):
        make = model_of((4,), lambda: layer(synchronized=True, momentum=0.5, dtype=policy))
        model, _, _ = fitted(make, replicas, x, np.ones((13, 1)), epochs=1)
        results.append([v.numpy() for v in model.layers[1].non_trainable_variables])
        assert model.layers[1].moving_variance.dtype == "float32"
    for one, many in zip(*results, strict=True):
        np.testing.assert_allclose(one, many, rtol=1e-6)


def test_what_a_stand_in_row_makes_reaches_no_other_replica():
    """The logarithm of a row of zeros is infinite, and its gradient NaN."""
    x, y = data((4,))
    layers = [lambda: LAYERS.Lambda(keras.ops.log), synchronized(), lambda: LAYERS.Dense(3, activation="tanh")]
    make = model_of((4,), *layers, synchronized())
    _, many = assert_trains_as_one(make, 3, positive(x), y)
    assert_one_set_of_states(many)


def test_not_trained_layers_keep_their_statistics():
    make = model_of((4,), lambda: LAYERS.BatchNormalization(synchronized=True, trainable=False))
    model, start, _ = fitted(make, 3, *data((4,)))
    statistics = [v.numpy() for v in model.layers[1].variables]
    for before, after in zip(start[:4], statistics, strict=True):
        np.testing.assert_array_equal(before, after)


def test_statistics_of_the_batch_in_predict():
    """`training=True` inside `call`: also a replica without rows takes part."""

    class AlwaysTraining(DistributedModel):
        def __init__(self):
            super().__init__()
            self.normalize = LAYERS.BatchNormalization(synchronized=True)

        def call(self, inputs):
            return self.normalize(inputs, training=True)

    x = data((2,), rows=4)[0]
    with strategy_for(3).scope():
        model = AlwaysTraining()
        model.compile()
        rows = model.predict(x, verbose=0)
    np.testing.assert_allclose(rows, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), rtol=1e-5, atol=1e-6)


def own_loop(replicas, layer):
    """Two derivatives through the statistics, in a plain Keras model and a hand-written loop."""
    strategy = strategy_for(replicas) if replicas else tf.distribute.get_strategy()
    x, y = data((3,), rows=7)
    with strategy.scope():
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((3,)), LAYERS.Dense(4, activation="tanh"), layer(), LAYERS.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(4))

    def on_replica(features, targets):
        batch = GlobalBatch(features)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(features)
                share = batch.share(tf.reduce_mean(tf.square(model(features, training=True) - targets)))
            slope = inner.gradient(share, features)
            penalty = tf.reduce_sum(tf.square(slope))  # a sum over rows: its shares add up as they are
            total = share + penalty
        variables = model.trainable_variables
        batch.apply_gradients(optimizer, tape.gradient(total, variables), variables)

    step = tf.function(lambda *batch: strategy.run(on_replica, args=batch))
    for batch in dataset:
        step(*batch)
    return model.get_weights()


def test_second_derivatives_in_an_own_loop(float64):
    one = own_loop(None, LAYERS.BatchNormalization)
    for expected, received in zip(one, own_loop(2, SyncBatchNormalization), strict=True):
        np.testing.assert_allclose(received, expected, rtol=1e-11, atol=1e-12)


def test_own_layer_is_synchronised_by_name():
    with pytest.raises(SetupError, match="SyncBatchNormalization"):
        SyncBatchNormalization(synchronized=False)
