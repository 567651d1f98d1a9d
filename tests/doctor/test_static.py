"""A model with one fault has one finding, with the severity and the fix that belong to it; a clean one has none."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices import cpu_names
from doctor.planted import batches, linear
from mirrored_keras import DistributedModel, GlobalBatch, GlobalBatchLoss, GlobalBatchMetric, SetupError
from mirrored_keras.doctor import static_findings


def found(model, *severities, dataset=None):
    """Returns the findings of some severities, "ok" never among them."""
    wanted = severities or ("error", "warning", "note")
    return [finding for finding in static_findings(model, dataset) if finding.severity in wanted]


@pytest.fixture
def scope(make_strategy):
    with make_strategy(2).scope():
        yield


def the_one(findings):
    assert len(findings) == 1, [str(finding) for finding in findings]
    return findings[0]


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y_true - y_pred))))

    def result(self):
        return self.largest


class Counter(keras.layers.Layer):
    def __init__(self, aggregation="none"):
        super().__init__(name="counter")
        self.seen = self.add_weight(
            name="seen", initializer="zeros", trainable=False, dtype="int32", aggregation=aggregation
        )

    def call(self, inputs):
        self.seen.assign(self.seen + 1)
        return inputs


class Noise(keras.layers.Layer):
    def __init__(self):
        super().__init__(name="noise")
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seed_generator)


class OwnStep(DistributedModel):
    def train_step(self, data):
        return self.update(*data)

    def update(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class ExactStep(OwnStep):
    def update(self, x, y):
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss}


class ClippingStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 1.0)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class LoggedStep(DistributedModel):
    def train_step(self, data):
        return {**super().train_step(data), "one": tf.constant(1.0)}


def test_a_clean_model_has_no_finding(scope):
    findings = static_findings(linear(), batches())
    assert [finding.severity for finding in findings] == ["ok", "ok"]


PLANTED = {
    "class of the model": lambda: linear(keras.Model, steps_per_execution=2),
    "loss 'dice'": lambda: linear(loss=keras.losses.Dice()),
    "metric 'largest'": lambda: linear(metrics=[Largest()]),
    "OwnStep.train_step": lambda: linear(OwnStep),
    "ClippingStep.train_step": lambda: linear(ClippingStep),
    "BatchNormalization 'norm'": lambda: linear(DistributedModel, keras.layers.BatchNormalization(name="norm")),
    "state of layer 'counter'": lambda: linear(DistributedModel, Counter()),
    "Noise 'noise'": lambda: linear(DistributedModel, Noise(), randomness="row"),
    "random layers 'drop'": lambda: linear(DistributedModel, keras.layers.Dropout(0.5, name="drop")),
    "run_eagerly": lambda: linear(run_eagerly=True),
    "steps_per_execution": lambda: linear(steps_per_execution=1),
}
FIXES = {
    "class of the model": ("error", "DistributedModel.from_model(model)"),
    "loss 'dice'": ("error", "GlobalBatchLoss(keras.losses.Dice(...))"),
    "metric 'largest'": ("error", "GlobalBatchMetric(Largest(...))"),
    "OwnStep.train_step": ("error", "share = batch.share(loss)    # call 1"),
    "ClippingStep.train_step": ("error", "global_clipnorm=1.0"),
    "BatchNormalization 'norm'": ("warning", "sync_batch_norm(model)"),
    "state of layer 'counter'": ("warning", 'aggregation="sum"'),
    "Noise 'noise'": ("warning", "draws_per_row = True"),
    "random layers 'drop'": ("note", 'randomness="row"'),
    "run_eagerly": ("warning", "run_eagerly=False"),
    "steps_per_execution": ("note", 'steps_per_execution="auto"'),
}


@pytest.mark.parametrize("subject", PLANTED)
def test_a_planted_fault_is_the_only_finding(scope, subject):
    finding = the_one(found(PLANTED[subject]()))
    severity, fix = FIXES[subject]
    assert (finding.subject, finding.severity) == (subject, severity)
    assert fix in finding.fix and finding.reason


RIGHT = {
    "wrapped loss": lambda: linear(loss=GlobalBatchLoss(keras.losses.Dice())),
    "wrapped metric": lambda: linear(metrics=[GlobalBatchMetric(Largest())]),
    "metrics of Keras": lambda: linear(metrics=["mae", keras.metrics.MeanSquaredError()]),
    "exact step": lambda: linear(ExactStep),
    "step of the parent": lambda: linear(LoggedStep),
    "synchronised": lambda: linear(DistributedModel, keras.layers.BatchNormalization(synchronized=True)),
    "declared state": lambda: linear(DistributedModel, Counter("sum")),
    "draws by row": lambda: linear(DistributedModel, keras.layers.Dropout(0.5), randomness="row"),
    "own loss function": lambda: linear(loss=lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_has_no_finding(scope, name):
    assert not found(RIGHT[name]())


def test_optimizer_made_outside_the_scope(make_strategy):
    outside = keras.optimizers.SGD()
    with make_strategy(2).scope():
        model = linear(keras.Model, optimizer=outside, steps_per_execution=2)  # stock `compile` takes it
    finding = the_one([one for one in found(model, "error") if one.subject == "scope"])
    assert "optimizer must be made inside the scope" in finding.reason and "with strategy.scope()" in finding.fix


def test_layer_made_trainable_after_compile(scope):
    frozen = keras.layers.Dense(3)
    frozen.trainable = False
    model = linear(DistributedModel, frozen)
    model.optimizer.build(model.trainable_variables)
    frozen.trainable = True
    assert the_one(found(model)).subject == "trainable weights"


def test_an_engine_that_does_not_sum():
    engine = tf.distribute.HierarchicalCopyAllReduce()
    with tf.distribute.MirroredStrategy(cpu_names(3), cross_device_ops=engine).scope():
        finding = the_one(found(linear()))
    assert (finding.severity, finding.subject) == ("error", "collectives")
    assert "HierarchicalCopyAllReduce" in finding.reason and "ReductionToOneDevice" in finding.fix


def test_a_model_that_is_not_compiled():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    assert [one.subject for one in found(DistributedModel.from_model(model))] == ["compile"]


def test_many_small_variables():
    layers = [keras.layers.Dense(4) for _ in range(60)]
    assert the_one(found(linear(DistributedModel, *layers))).subject == "small variables"


def test_data(make_strategy):
    with make_strategy(3).scope():
        model = linear()
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 4)), np.ones((8, 2))))
    assert the_one(found(model, dataset=data.map(lambda x, y: y[0]))).subject == "dataset"
    assert the_one(found(model, dataset=data.batch(4))).subject == "prefetch"
    few = the_one(found(model, dataset=data.batch(2, drop_remainder=True).prefetch(1)))
    assert few.subject == "global batch" and "1 of 3 replicas" in few.reason


def test_only_models_are_examined():
    with pytest.raises(SetupError, match=r"takes a `keras\.Model`"):
        static_findings(keras.layers.Dense(1))
