"""Training in parts, each in what stands for a new process, gives the numbers of training without a break."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tolerances
from checkpoint.sources import (
    Batches,
    EndlessBatches,
    ReshuffledBatches,
    fit_arrays,
    fit_data,
    of_unknown_length,
    records,
)
from checkpoint.training import (
    InterruptAfter,
    Interrupted,
    Models,
    arrays,
    dataset,
    largest_error,
    largest_log_error,
    numbers_of,
)
from devices import strategy_for
from mirrored_keras import DistributedModel, GlobalBatch, Resume

pytestmark = pytest.mark.table(every=3)

DATA = {
    "arrays": fit_arrays(validation_split=0.2),
    "arrays, batches shuffled": fit_arrays(shuffle="batch"),
    "arrays, in order, class weights": fit_arrays(shuffle=False),
    "arrays, epochs that end within a pass": fit_arrays(steps_per_epoch=4, epochs=4),
    "dataset": fit_data(dataset, validation_data=tuple(part[:5] for part in arrays())),
    "dataset without end": fit_data(lambda: dataset().repeat(), steps_per_epoch=5, epochs=4),
    "dataset, epochs that end within it": fit_data(lambda: dataset().repeat(4), steps_per_epoch=5, epochs=4),
    "dataset, several orders per pass": fit_data(lambda: dataset().repeat(2), epochs=2),
    "dataset, a shuffle of a shuffle": fit_data(lambda: dataset().unbatch().shuffle(9, seed=3).batch(4)),
    "dataset of unknown length": fit_data(of_unknown_length),
    "batches by index": fit_data(Batches, shuffle=True),
    "batches by index, workers": fit_data(lambda: ReshuffledBatches(workers=2), shuffle=True),
    "batches by index, epochs that end within": fit_data(Batches, shuffle=True, steps_per_epoch=4, epochs=4),
}
BREAKS = [1, 0, 3, 2, 5, 1, 4]
RUNS_OUT = "ignore:Your input ran out of data"


@pytest.fixture(scope="module")
def models():
    return Models()


def check(models, fit, tmp_path, *, replicas=(None,), steps=BREAKS, callbacks=(), every_steps=1):
    """Compares training in parts with training at once; returns the callbacks of both."""
    expected, expected_history, one = models.whole(replicas[-1], fit, tmp_path / "whole", callbacks)
    numbers, history, other = models.in_parts(
        replicas, steps, fit, tmp_path / "parts", callbacks=callbacks, every_steps=every_steps
    )
    if len(set(replicas)) == 1:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers, expected, strict=True))
        assert history.history == expected_history.history
        assert history.epoch == expected_history.epoch
    else:
        assert largest_error(numbers, expected) < tolerances.weights(20)
        assert largest_log_error(history, expected_history) < tolerances.logs(20)
    return one, other


@pytest.mark.parametrize("name", DATA)
@pytest.mark.filterwarnings(RUNS_OUT)
def test_data(name, models, tmp_path):
    check(models, DATA[name], tmp_path)


@pytest.mark.filterwarnings(RUNS_OUT)
def test_records(models, tmp_path):
    check(models, fit_data(records(tmp_path)), tmp_path)


@pytest.mark.parametrize("name", ["arrays", "dataset", "dataset without end", "batches by index"])
def test_other_replicas(name, models, tmp_path):
    check(models, DATA[name], tmp_path, replicas=(2, None, 4, 1), steps=[3, 5, 2])


def test_two_replicas_to_the_bit(models, tmp_path):
    check(models, DATA["arrays"], tmp_path, replicas=(2,), steps=[3, 6])


@pytest.mark.parametrize("name", ["dataset", "dataset without end", "dataset, several orders per pass"])
def test_a_seeded_dataset_is_trained_on_as_without_resume(name, models, tmp_path):
    numbers, _, _ = models.whole(None, DATA[name], tmp_path)
    expected, _, _ = models.whole(None, DATA[name], None)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers, expected, strict=True))


def test_endless_batches_by_index(models, tmp_path):
    check(models, fit_data(EndlessBatches, steps_per_epoch=5), tmp_path)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (lambda: keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3), {}),
        (lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=4, weight_decay=0.1), {}),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), dynamic_growth_steps=3), {}),
        (lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)), {}),
        ("rmsprop", {"steps_per_execution": 3}),
        ("rmsprop", {"steps_per_execution": "auto"}),
    ],
    ids=["accumulation", "averages", "loss scale", "schedule", "three steps per execution", "auto"],
)
def test_optimizers_and_executions(optimizer, options, tmp_path):
    models = Models(optimizer=optimizer, **options)
    steps = [1, 2] if options else BREAKS[:4]
    check(models, DATA["dataset without end"], tmp_path, steps=steps)
    if options:
        check(models, DATA["arrays"], tmp_path / "on two", replicas=(2, None), steps=[1])


class Noise(keras.layers.Layer):
    """Draws without a seed of its own."""

    def call(self, inputs, training=False):
        return inputs + keras.random.normal(keras.ops.shape(inputs)) if training else inputs


def with_noise(replicas):
    strategy = strategy_for(replicas)
    with strategy.scope() if strategy is not None else tf.init_scope():
        keras.utils.set_random_seed(11)
        inputs = keras.Input((5,))
        outputs = keras.layers.Dense(1)(keras.layers.Dropout(0.5)(Noise()(inputs)))
        model = DistributedModel(inputs, outputs)
        model.compile("sgd", "mse", randomness="replica")
        model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("replicas", [None, 2])
def test_draws_without_a_seed(replicas, tmp_path):
    check(Models(with_noise), DATA["dataset"], tmp_path, replicas=(replicas,), steps=[2, 3, 4])


def test_validation_does_not_set_draws_without_a_seed_back(tmp_path):
    models = Models(with_noise)
    states = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: states.append(model.get_random_state()[-1]))
    model = models.fresh(2)
    fit_arrays(validation_split=0.3)(model, [note])
    assert len({tuple(state) for state in states}) == 3
    assert model.get_random_state()[-1] == states[-1]


def unbuilt():
    keras.utils.set_random_seed(11)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = DistributedModel.from_model(keras.Sequential(layers))
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_a_model_that_is_built_by_its_first_batch(tmp_path):
    whole, parts = unbuilt(), unbuilt()
    expected = fit_arrays()(whole, [Resume(tmp_path / "whole")])
    with pytest.raises(Interrupted):
        fit_arrays()(unbuilt(), [Resume(tmp_path / "parts", every_steps=1), InterruptAfter(7)])
    history = fit_arrays()(parts, [Resume(tmp_path / "parts")])
    assert history.history == expected.history
    assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers_of(parts), numbers_of(whole), strict=True))


class OwnStep(DistributedModel):
    """Logs numbers that no metric keeps."""

    def train_step(self, data):
        x, y, weight = data
        batch = GlobalBatch.current(x)
        with batch, tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * (self(x, training=True)[:, 0] - y[:, 0]) ** 2)
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss, "mean": tf.reduce_mean(x)}


def with_own_step(replicas):
    strategy = strategy_for(replicas)
    with strategy.scope() if strategy is not None else tf.init_scope():
        keras.utils.set_random_seed(11)
        inputs = keras.Input((5,))
        model = OwnStep(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5, seed=1)(inputs)))
        model.compile("adam")
        model.optimizer.build(model.trainable_variables)
    return model


def test_own_step(tmp_path):
    # the fifth part begins after the last step of an epoch, before its end
    check(Models(with_own_step), fit_data(dataset), tmp_path, steps=[3, 2, 0, 1, 4])


def with_curves(replicas):
    strategy = strategy_for(replicas)
    with strategy.scope() if strategy is not None else tf.init_scope():
        keras.utils.set_random_seed(11)
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
        curves = [keras.metrics.AUC(name="curve"), keras.metrics.F1Score(name="f1")]
        model.compile("adam", "binary_crossentropy", metrics=curves, weighted_metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
    return model


def fit_classes(model, callbacks):
    x, y, _ = arrays()
    options = {"class_weight": {0: 1.0, 1: 3.0}, "batch_size": 4, "epochs": 3, "verbose": 0}
    return model.fit(x, (y > 0).astype("float32"), callbacks=callbacks, **options)


def test_metrics_that_are_summed_over_replicas(tmp_path):
    check(Models(with_curves), fit_classes, tmp_path, replicas=(2, None), steps=[3, 5, 4])


def test_a_list_of_callbacks_as_keras_makes_it(models, tmp_path):
    def fit(model, callbacks):
        return fit_arrays()(model, keras.callbacks.CallbackList(callbacks, model=model))

    check(models, fit, tmp_path, steps=[3, 5])


class Averaged(keras.callbacks.Callback):
    """Remembers in plain attributes."""

    def __init__(self, decay=0.5):
        super().__init__()
        self.decay = decay
        self.average = None
        self.seen = []
        self.by_epoch = {}

    def on_epoch_begin(self, epoch, logs=None):
        self.by_epoch[epoch] = np.zeros(2, "float32")

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, float(np.random.uniform())))
        loss = logs["loss"]
        self.average = loss if self.average is None else self.decay * self.average + (1 - self.decay) * loss


class Described(keras.callbacks.Callback):
    """Remembers in something that is not plain."""

    def __init__(self):
        super().__init__()
        self.steps = iter(range(1000))
        self.last = object()
        self.count = -1

    def on_train_batch_end(self, batch, logs=None):
        self.count = next(self.steps)

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]
        self.steps = iter(range(self.count + 1, 1000))


def test_callbacks(models, tmp_path):
    names = iter(("whole", *["parts"] * 20))

    loggers = []

    def csv():
        loggers.append(keras.callbacks.CSVLogger(str(tmp_path / f"{next(names)}.csv")))
        return loggers[-1]

    made = (
        lambda: keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        lambda: keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.3),
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        Averaged,
        Described,
        csv,
    )
    fit = fit_arrays(validation_split=0.2, epochs=6)
    one, other = check(models, fit, tmp_path, callbacks=made, steps=[2, 7, 6, 3, 8])
    for logger in loggers:
        logger.csv_file.close()
    for name in ("wait", "best", "stopped_epoch", "best_epoch"):
        assert getattr(one[0], name) == getattr(other[0], name)
    assert one[1].best == other[1].best and one[1].wait == other[1].wait
    assert one[3].average == other[3].average and one[3].seen == other[3].seen
    assert list(one[3].by_epoch) == list(other[3].by_epoch)
    assert one[4].count == other[4].count
    assert (tmp_path / "whole.csv").read_text() == (tmp_path / "parts.csv").read_text()


def test_training_that_is_over_trains_nothing_more(models, tmp_path):
    fit = DATA["arrays"]
    numbers, history, _ = models.whole(None, fit, tmp_path)
    model = models.spoilt(None)
    steps = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: pytest.fail("trained"))
    again = fit(model, [Resume(tmp_path), steps])
    assert again.history == history.history
    assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers_of(model), numbers, strict=True))


def test_more_epochs_go_on(models, tmp_path):
    expected, _, _ = models.whole(None, fit_arrays(epochs=4), tmp_path / "whole")
    models.whole(None, fit_arrays(epochs=2), tmp_path / "parts")
    model = models.spoilt(None)
    history = fit_arrays(epochs=4)(model, [Resume(tmp_path / "parts")])
    assert history.epoch == [0, 1, 2, 3]
    assert largest_error(numbers_of(model), expected) == 0


def test_stopped_training_stays_stopped(models, tmp_path):
    def stopping():
        callback = keras.callbacks.LambdaCallback()
        callback.on_epoch_end = lambda epoch, logs: setattr(callback.model, "stop_training", epoch == 1)
        return callback

    _, history, _ = models.whole(None, fit_arrays(epochs=5), tmp_path, [stopping])
    assert history.epoch == [0, 1]
    again = fit_arrays(epochs=5)(models.spoilt(None), [Resume(tmp_path)])
    assert again.epoch == [0, 1]
