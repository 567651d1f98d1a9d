"""A user's own losses, steps and loops: exact on three replicas, or noticed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices import strategy_for
from mirrored_keras import DistributedModel, GlobalBatch
from model.regression import BATCH, X, Y, assert_same_weights, assert_trains_as_one, dataset, made_under, perceptron


class GuideStep(DistributedModel):
    """In the style of Keras' guides: `compute_loss`, gradients, `optimizer.apply`, metrics in a loop."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class TwoCalls(DistributedModel):
    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss, "on_all": batch.mean(loss)}


class LossObject(DistributedModel):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_object = keras.losses.Huber(reduction="mean_with_sample_weight")
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = batch.loss(self.loss_object, y, self(x, training=True), tf.abs(x[:, 0]))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        self.tracker.update_state(loss, sample_weight=batch.rows)
        return {"loss": self.tracker.result()}


class PlainMean(DistributedModel):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Remembering(DistributedModel):
    """Keeps a tensor between `call` and `compute_loss`, and adds a loss: both must stay a replica's own."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="tanh")
        self.second = keras.layers.Dense(1)

    def call(self, x):
        self.hidden = self.first(x)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.abs(self.hidden)))
        return self.second(self.hidden)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.3 * keras.ops.mean(keras.ops.square(self.hidden))


class SumOfRows(keras.layers.Layer):
    def call(self, x):
        self.add_loss(GlobalBatch.current(x).sum_of_rows(0.01 * keras.ops.sum(keras.ops.square(x))))
        return x


class ValuePerRow(keras.layers.Layer):
    """Keras sums an added vector: over the rows for the first of these, over the columns for the second."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x), axis=-1))
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x), axis=0))
        return x


@pytest.fixture(params=[2, 3, 4])
def replicas(request):
    return request.param


@pytest.mark.parametrize("step", [GuideStep, TwoCalls, LossObject])
def test_own_train_step(step, replicas):
    assert_trains_as_one(lambda: perceptron(step), replicas)


def test_compiled_metrics_of_a_step_in_the_style_of_the_guides(replicas):
    assert_trains_as_one(lambda: perceptron(GuideStep, metrics=["mae"]), replicas)


def test_own_step_without_targets_may_ignore_the_compiled_loss():
    class OnFeatures(DistributedModel):
        def train_step(self, data):
            batch = GlobalBatch(data)
            with tf.GradientTape() as tape:
                share = batch.share(tf.reduce_mean(tf.square(self(data, training=True))))
            gradients = tape.gradient(share, self.trainable_variables)
            batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
            return {"size": share}

    assert_trains_as_one(
        lambda: perceptron(OnFeatures, metrics=["mae"]),
        run=lambda model: {"size": model.fit(X, batch_size=19, verbose=0).history["size"][0] * 0},
    )


def test_an_error_of_the_users_loss_is_handed_on():
    def loss(y_true, y_pred):
        raise ValueError("my own bug")

    with pytest.raises(ValueError, match="my own bug") as caught:
        made_under(2, lambda: perceptron(DistributedModel, loss=loss)).fit(X, Y, verbose=0)
    assert type(caught.value) is ValueError


def test_two_calls_without_compiled_loss(replicas):
    one, _ = assert_trains_as_one(lambda: perceptron(TwoCalls, loss=None), replicas)
    stock = made_under(None, lambda: perceptron(keras.Model))
    stock.fit(dataset(), verbose=0, shuffle=False)
    assert_same_weights(stock, one)


def test_a_loss_of_its_own_is_noticed():
    model = made_under(3, lambda: perceptron(PlainMean, loss=None))
    with pytest.warns(UserWarning, match=r"(?s)PlainMean\.train_step.*two calls make it exact.*batch\.share\(loss\)"):
        model.fit(dataset(), verbose=0, shuffle=False)


def test_one_replica_is_not_warned():
    made_under(None, lambda: perceptron(PlainMean, loss=None)).fit(dataset(), verbose=0, shuffle=False)


def test_own_loss_reaches_the_history():
    model = made_under(None, lambda: perceptron(PlainMean))
    history = model.fit(X, Y, batch_size=len(X), verbose=0).history
    stock = made_under(None, lambda: perceptron(keras.Model))
    assert history["loss"] == pytest.approx(stock.fit(X, Y, batch_size=len(X), verbose=0).history["loss"])


def test_share_of_transformed_features_is_taken_once(replicas):
    class Transformed(DistributedModel):
        def train_step(self, data):
            x, y = data
            scaled = x / 2.0
            loss_batch = GlobalBatch(scaled)
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(scaled, training=True))
                share = loss_batch.share(loss)
            gradients = tape.gradient(share, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    assert_trains_as_one(lambda: perceptron(Transformed), replicas)


@pytest.mark.filterwarnings("ignore:`ReplicaNumber.train_step`")
@pytest.mark.parametrize(("method", "expected"), [("sum", 3.0), ("mean", 1.0), ("first", 0.0), ("auto", 18 / 19)])
def test_reduction_method(method, expected):
    class ReplicaNumber(PlainMean):
        def train_step(self, data):
            super().train_step(data)
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return {"replica": tf.cast(replica, tf.float32)}  # 7, 6 and 6 rows

    model = made_under(3, lambda: perceptron(ReplicaNumber))
    model.distribute_reduction_method = method
    value = model.fit(X, Y, batch_size=19, verbose=0).history["replica"][0]
    assert value == pytest.approx(expected)


def test_tensors_kept_between_call_and_loss(replicas):
    def make():
        model = Remembering()
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
        return model

    assert_trains_as_one(make, replicas)


@pytest.mark.parametrize("adding", [SumOfRows, ValuePerRow])
def test_added_sum_of_rows(adding, replicas):
    def make():
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, keras.layers.Dense(1)(adding()(keras.layers.Dense(3)(inputs))))
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
        return model

    assert_trains_as_one(make, replicas)


class MeanOfEachColumn(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=0)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_a_loss_with_a_mean_per_column(reduction, replicas):
    """It has no value per row; each of its numbers is a mean over the rows."""

    def make():
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, keras.layers.Dense(3)(inputs))
        model.compile("sgd", MeanOfEachColumn(reduction=reduction))
        return model

    y = X[:, :3] * Y
    assert_trains_as_one(
        make, replicas, lambda model: model.fit(X, y, batch_size=BATCH, verbose=0, shuffle=False).history
    )


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_loop_without_fit(optimizer, replicas):
    """The usual hand-written loop; nobody has built the optimizer."""

    def run(model):
        strategy = model.distribute_strategy

        def step(x, y):
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean(tf.square(y - model(x, training=True)), axis=-1)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=6)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        @tf.function
        def on_all(x, y):
            strategy.run(step, args=(x, y))

        batches = tf.data.Dataset.from_tensor_slices((X[:18], Y[:18])).batch(6)
        for x, y in strategy.experimental_distribute_dataset(batches):
            on_all(x, y)
        return {}

    assert_trains_as_one(lambda: perceptron(DistributedModel, optimizer=optimizer(0.02)), replicas, run)


def test_train_step_in_a_loop_builds_everything():
    class Unbuilt(TwoCalls):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    strategy = strategy_for(3)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = Unbuilt()
        model.compile("adam")
        model(X[:1])

    @tf.function
    def on_all(x, y):
        strategy.run(model.train_step, args=((x, y),))

    for x, y in strategy.experimental_distribute_dataset(dataset()):
        on_all(x, y)
    assert int(model.optimizer.iterations.numpy()) == 3
    assert np.isfinite(model.get_weights()[0]).all()
