"""By default every replica draws a stream of its own, which the seed decides; draws without a seed work."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch
from mirrored_keras.replica import private
from model.regression import assert_same_weights, made_under

LAYERS = keras.layers
X = np.random.default_rng(3).uniform(size=(7, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def start_again(seed):
    keras.utils.set_random_seed(seed)
    private.set_unseeded_generator(None)  # Keras 3.12 goes on with the old one


def made(replicas, make):
    start_again(1)
    return made_under(replicas, make)


class InTraining(LAYERS.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs, training=True)


class Unseeded(LAYERS.Layer):
    """Adds noise that no seed generator of its own decides."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, inputs, training=False):
        return inputs + self.draw(inputs)


def predictor(layer, base=DistributedModel, **compiled):
    def make():
        inputs = keras.Input((6,))
        model = base(inputs, InTraining(layer())(inputs))
        model.compile(**compiled)
        return model

    return make


def drawn(layer, replicas, rows=4, **compiled):
    """What two batches of ones become: on R replicas, `rows // R` rows each."""
    model = made(replicas, predictor(layer, **compiled))
    return model.predict(np.ones((2 * rows, 6), "float32"), batch_size=rows, verbose=0)


def trainer(layer, base=DistributedModel, **compiled):
    def make():
        inputs = keras.Input((6,))
        hidden = layer()(LAYERS.Dense(4)(inputs))
        model = base(inputs, LAYERS.Dense(1)(hidden))
        model.compile(keras.optimizers.SGD(0.05), "mse", **compiled)
        return model

    return make


def fitted(make, replicas, epochs=2):
    model = made(replicas, make)
    model.fit(X, Y, batch_size=3, epochs=epochs, shuffle=False, verbose=0)
    return model


RANDOM = {
    "Dropout": lambda: LAYERS.Dropout(0.5),
    "GaussianNoise": lambda: LAYERS.GaussianNoise(0.5),
    "AlphaDropout": lambda: LAYERS.AlphaDropout(0.5),
}
UNSEEDED = {
    "keras.random": lambda x: keras.random.normal(keras.ops.shape(x)),
    "keras.random.dropout": lambda x: keras.random.dropout(x, 0.5),
    "tf.random": lambda x: tf.random.normal(tf.shape(x)),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_replicas_draw_different_numbers_that_a_seed_decides(name, eager):
    first = drawn(RANDOM[name], 2, run_eagerly=eager)
    assert not np.array_equal(first[:2], first[2:4]), "both replicas draw the same"
    assert not np.array_equal(first[:4], first[4:]), "both batches draw the same"
    np.testing.assert_array_equal(drawn(RANDOM[name], 2, run_eagerly=eager), first)


@pytest.mark.parametrize("name", UNSEEDED)
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_draws_without_a_seed(name, eager):
    first = drawn(lambda: Unseeded(UNSEEDED[name]), 2, run_eagerly=eager)
    assert not np.array_equal(first[:2], first[2:4]), "both replicas draw the same"
    assert not np.array_equal(first[:4], first[4:]), "both batches draw the same"
    np.testing.assert_array_equal(drawn(lambda: Unseeded(UNSEEDED[name]), 2, run_eagerly=eager), first)


def test_eight_streams_differ():
    noise = drawn(lambda: LAYERS.GaussianNoise(1.0), 8, rows=8, run_eagerly=True)
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("replicas", [None, 1])
@pytest.mark.parametrize("layer", [RANDOM["Dropout"], lambda: Unseeded(UNSEEDED["keras.random"])], ids=["own", "none"])
def test_one_replica_draws_what_keras_draws(layer, replicas):
    stock = fitted(trainer(layer, keras.Model), None)
    ours = fitted(trainer(layer), replicas)
    for a, b in zip(stock.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    # outside the replicas the stream without a seed goes on from there
    assert int(keras.random.randint((), 0, 1_000_000)) == after_stock(layer)


def after_stock(layer):
    fitted(trainer(layer, keras.Model), None)
    return int(keras.random.randint((), 0, 1_000_000))


def test_seed_states_are_one_on_all_replicas_with_rows_or_without():
    one, many = fitted(trainer(RANDOM["Dropout"]), None), fitted(trainer(RANDOM["Dropout"]), 4)
    (expected,) = [v.value.numpy().tolist() for v in one.variables if "seed" in v.path]
    (state,) = [v.value for v in many.variables if "seed" in v.path]
    assert expected[1] == 6
    assert [copy.numpy().tolist() for copy in state.values] == [expected] * 4


def test_training_is_reproducible():
    one, two = fitted(trainer(RANDOM["Dropout"]), 3), fitted(trainer(RANDOM["Dropout"]), 3)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_new_seed_starts_draws_without_a_seed_again():
    model = made(2, predictor(lambda: Unseeded(UNSEEDED["keras.random"])))
    ones = np.ones((4, 6), "float32")
    results = []
    for seed in (1, 1, 2):
        start_again(seed)
        results.append(model.predict(ones, verbose=0))
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_strategies_take_turns_with_one_stream_without_a_seed():
    models = [made(count, predictor(lambda: Unseeded(UNSEEDED["keras.random"]))) for count in (2, 3)]
    start_again(1)
    results = [models[index].predict(np.ones((1, 6), "float32"), verbose=0) for index in (0, 1, 0)]
    start_again(1)
    expected = [1 + np.asarray(keras.random.normal((1, 6))) for _ in range(3)]
    np.testing.assert_allclose(results, expected, atol=1e-6)


class Generator(DistributedModel):
    """An own step that draws by a generator of the model, and a draw of its own layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator(5)

    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            noise = batch.draw(lambda rows: keras.random.normal((rows, 6), seed=self.noise))
            loss = tf.reduce_mean(tf.square(y - self(x + noise, training=True)))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_own_step_draws_by_row(eager):
    make = trainer(RANDOM["Dropout"], Generator, randomness="row", run_eagerly=eager)
    assert_same_weights(fitted(make, None), fitted(make, 3))


def test_own_step_draws_streams_of_their_own():
    make = trainer(RANDOM["Dropout"], Generator, randomness="replica")
    one, two = fitted(make, None, epochs=1).get_weights(), fitted(make, 2, epochs=1).get_weights()
    assert max(np.abs(a - b).max() for a, b in zip(one, two, strict=True)) > 1e-4


@pytest.mark.parametrize("randomness", ["replica", "row"])
def test_loop_without_fit(randomness):
    def after_two_steps(replicas):
        model = made(replicas, trainer(RANDOM["Dropout"], Generator, randomness=randomness))
        strategy = model.distribute_strategy
        for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)):
            tf.function(lambda data: strategy.run(model.train_step, args=(data,)))(batch)
        return model.get_weights()

    one, many = after_two_steps(None), after_two_steps(3)
    largest = max(np.abs(a - b).max() for a, b in zip(one, many, strict=True))
    assert largest < 2e-6 if randomness == "row" else largest > 1e-4
