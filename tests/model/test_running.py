"""fit, evaluate, predict and the batch methods: steps, logs, order and the caller's arrays."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel
from mirrored_keras.replica import startup
from model.regression import BATCH, ROWS, X, Y, assert_same_logs, assert_trains_as_one, dataset, made_under, perceptron

pytestmark = [
    pytest.mark.table(every=3),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]
STEPS = -(-ROWS // BATCH)


def model(replicas, **compiled):
    return made_under(replicas, lambda: perceptron(DistributedModel, **compiled))


def batches():
    for start in range(0, ROWS, BATCH):
        yield X[start : start + BATCH], Y[start : start + BATCH]


class Logs(keras.callbacks.Callback):
    """The logs of every batch, as a callback sees them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append({name: float(value) for name, value in logs.items()})


@pytest.mark.parametrize("replicas", [None, 1, 3])
@pytest.mark.parametrize("feed", ["unknown length", "generator", "generator with None"])
def test_as_many_updates_as_batches(replicas, feed):
    trained = model(replicas)
    epochs = 1
    if feed == "unknown length":
        data, epochs = dataset().filter(lambda x, y: True), 3
    elif feed == "generator":
        data = batches()
    else:
        data = ((x, y, None) for x, y in batches())
    trained.fit(data, epochs=epochs, verbose=0)
    assert int(trained.optimizer.iterations.numpy()) == STEPS * epochs


@pytest.mark.parametrize("replicas", [2, 4])
def test_first_batch_of_a_generator_is_trained_on(replicas):
    assert_trains_as_one(
        lambda: perceptron(DistributedModel), replicas, lambda m: m.fit(batches(), verbose=0, shuffle=False).history
    )


@pytest.mark.parametrize("replicas", [2, 3])
def test_logs_of_every_batch(replicas):
    def largest_error(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))  # one number per batch

    seen = []
    for count in (None, replicas):
        logs = Logs()
        trained = model(count, metrics=["mae", largest_error, "RootMeanSquaredError"])
        trained.fit(dataset(), verbose=0, epochs=2, callbacks=[logs])
        seen.append(logs.seen)
    assert len(seen[0]) == len(seen[1]) == 2 * STEPS
    for one, many in zip(*seen, strict=True):
        assert_same_logs(one, many)


def test_function_of_the_batch_counts_rows():
    def mean_error(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))

    for replicas in (None, 4):
        trained = model(replicas, metrics=[mean_error, "mae"])
        logs = trained.evaluate(X, Y, batch_size=9, return_dict=True, verbose=0)  # 9, 9 and 1 rows
        assert logs["mean_error"] == pytest.approx(logs["mae"], rel=1e-6)


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize(
    "run",
    [
        lambda m: m.train_on_batch(X, Y, return_dict=True),
        lambda m: m.train_on_batch(X[:2], Y[:2], sample_weight=np.array([0.5, 2.0]), return_dict=True),
        lambda m: m.test_on_batch(X[:1], Y[:1], return_dict=True),
        lambda m: m.evaluate(X[:5], Y[:5], batch_size=12, return_dict=True, verbose=0),
        lambda m: m.fit(X, Y, batch_size=BATCH, validation_split=0.3, shuffle=False, verbose=0).history,
        lambda m: m.fit(X, Y, batch_size=BATCH, validation_data=(X[:5], Y[:5]), verbose=0, shuffle=False).history,
    ],
)
def test_methods(replicas, run):
    assert_trains_as_one(lambda: perceptron(DistributedModel, metrics=["mae"]), replicas, run)


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 2}])
def test_ways_to_execute(options):
    assert_trains_as_one(lambda: perceptron(DistributedModel, metrics=["mae"], **options))


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_predictions_keep_their_order(replicas):
    expected = made_under(None, lambda: perceptron(keras.Model)).predict(X, verbose=0)
    trained = model(replicas)
    for rows in (
        trained.predict(X, batch_size=BATCH, verbose=0),
        trained.predict(dataset(5), verbose=0),
        trained.predict_on_batch(X),
    ):
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6)


class AsWideAsTheLargest(DistributedModel):
    """Cuts its input where a batch says so: replicas and batches differ in width."""

    def call(self, inputs):
        return {"cut": inputs[:, : tf.cast(tf.reduce_max(inputs[:, 0]), tf.int32)], "all": inputs[:, None, :]}


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_predictions_as_wide_as_a_batch_decides(run_eagerly):
    def make():
        cutting = AsWideAsTheLargest()
        cutting.compile(run_eagerly=run_eagerly)
        return cutting

    widths = np.array([1, 2, 3, 4, 1, 1, 1, 2, 3, 2, 1])
    rows = np.column_stack([widths, np.arange(44).reshape(11, 4)]).astype("float32")
    predictions = made_under(3, make).predict(rows, batch_size=4, verbose=0)
    np.testing.assert_array_equal(predictions["all"], rows[:, None])
    # rows 0-1, 2, 3; 4-5, 6, 7; 8, 9, 10
    expected = [2, 2, 3, 4, 1, 1, 1, 2, 3, 2, 1]
    assert predictions["cut"].to_list() == [row[:width].tolist() for row, width in zip(rows, expected, strict=True)]


@pytest.mark.parametrize("replicas", [None, 3])
def test_predictions_of_unknown_width_stay_arrays(replicas):
    def make():
        inputs = keras.Input((None, 5))
        return DistributedModel(inputs, keras.layers.Dense(2)(inputs))

    sequences = np.random.default_rng(1).normal(size=(11, 3, 5)).astype("float32")
    made = made_under(replicas, make)
    assert made.predict_on_batch(sequences).shape == (11, 3, 2)
    rows = made.predict(sequences, batch_size=4, verbose=0)
    assert isinstance(rows, np.ndarray)
    np.testing.assert_allclose(rows, made(sequences), rtol=0, atol=1e-6)


class ErrorOfEachRow(DistributedModel):
    def test_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"error": tf.abs(self(x) - y)[:, 0]}


def test_a_log_with_a_value_per_row():
    one, many = (made_under(replicas, lambda: perceptron(ErrorOfEachRow)) for replicas in (None, 3))
    expected = one.evaluate(X[:8], Y[:8], batch_size=7, verbose=0, return_dict=True)  # the last batch has one row
    received = many.evaluate(X[:8], Y[:8], batch_size=7, verbose=0, return_dict=True)
    np.testing.assert_allclose(received["error"], expected["error"], rtol=1e-5)
    expected = np.ravel(one.test_on_batch(X, Y))
    np.testing.assert_allclose(np.ravel(many.test_on_batch(X, Y)), expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_not_compiled(method):
    def make():
        inputs = keras.Input((5,))
        return DistributedModel(inputs, keras.layers.Dense(1)(inputs))

    with pytest.raises(ValueError, match="must call `compile"):
        getattr(made_under(2, make), method)(X, Y)


@pytest.mark.parametrize("form", ["generator", "PyDataset"])
def test_the_callers_arrays_stay_as_they_are(form):
    rows = 4096  # NumPy aligns large arrays, and only aligned ones are handed on without a copy
    arrays = [(np.ones((rows, 5), "float32"), np.full((rows, 1), 3.0, "float32")) for _ in range(3)]

    class Arrays(keras.utils.PyDataset):
        def __len__(self):
            return len(arrays)

        def __getitem__(self, index):
            return arrays[index]

    model(4).fit(iter_of(arrays) if form == "generator" else Arrays(), verbose=0)
    for x, y in arrays:
        assert (x == 1.0).all() and (y == 3.0).all()


def iter_of(arrays):
    yield from arrays


@pytest.mark.parametrize("replicas", [1, 3])
def test_class_weight_of_a_distributed_dataset(replicas):
    classes = (np.arange(ROWS) % 3).astype("int32")
    weights = {0: 5.0, 2: 0.25}

    def make():
        inputs = keras.Input((5,))
        made = DistributedModel(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
        made.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return made

    data = tf.data.Dataset.from_tensor_slices((X, classes)).batch(BATCH)
    one, many = made_under(None, make), made_under(replicas, make)
    expected = one.fit(data, class_weight=weights, verbose=0).history
    distributed = many.distribute_strategy.experimental_distribute_dataset(data)
    assert_same_logs(expected, many.fit(distributed, class_weight=weights, verbose=0).history)


def test_losses_per_output_are_means_over_rows():
    def make():
        inputs = keras.Input((5,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
        made = DistributedModel(inputs, outputs)
        made.compile(keras.optimizers.SGD(0.0), {"a": "mse", "b": "mae"}, metrics={"a": ["mse"], "b": ["mae"]})
        return made

    for replicas in (None, 2, 4):
        made = made_under(replicas, make)
        logs = made.fit(X, {"a": Y, "b": -Y}, batch_size=BATCH, verbose=0, shuffle=False).history
        assert logs["a_loss"] == pytest.approx(logs["a_mse"], rel=1e-6)
        assert logs["b_loss"] == pytest.approx(logs["b_mae"], rel=1e-6)


def test_a_running_model_is_not_traced_again():
    trained = model(3)
    trained.fit(dataset(), epochs=2, verbose=0)
    before = trained.train_function._on_iterator.experimental_get_tracing_count()
    trained.fit(dataset(), epochs=3, verbose=0)
    assert trained.train_function._on_iterator.experimental_get_tracing_count() == before <= 2


def test_new_shapes_are_tried_once(monkeypatch):
    tried = []
    original = startup.private.run_on_specs
    monkeypatch.setattr(startup.private, "run_on_specs", lambda *args: (tried.append(args), original(*args)))
    model = made_under(2, lambda: perceptron(DistributedModel))
    for _ in range(2):
        model.fit(X, Y, sample_weight=np.ones(ROWS), validation_data=(X, Y), epochs=3, verbose=0)
    assert len(tried) == 1, "data with weights build the model, data without are tried, neither again"


@pytest.mark.parametrize("replicas", [None, 3])
@pytest.mark.parametrize("changing", ["y", "sample_weight"])
def test_other_ranks_from_call_to_call(replicas, changing):
    """TensorFlow would trace for both, without the rank; what a call trains does not depend on the calls before it."""
    weights = np.linspace(0.0, 2.0, ROWS)
    changed, kept = model(replicas), model(replicas)
    for rank in (1, 2, 1):
        vectors = {"y": Y[:, 0], "sample_weight": weights}
        columns = {name: vector[:, None] for name, vector in vectors.items()}
        data = {**vectors, **({changing: columns[changing]} if rank == 2 else {})}
        logs = [m.train_on_batch(X, **parts, return_dict=True) for m, parts in ((changed, data), (kept, vectors))]
        logs += [m.fit(X, **parts, batch_size=BATCH, shuffle=False, verbose=0).history for m, parts in
                 ((changed, data), (kept, vectors))]  # fmt: skip
        assert_same_logs(logs[0], logs[1])
        assert_same_logs(logs[2], logs[3])
        assert_same_logs(
            changed.evaluate(X, **data, verbose=0, return_dict=True),
            kept.evaluate(X, **vectors, verbose=0, return_dict=True),
        )


@pytest.mark.parametrize("strategy", [None, 1])
def test_xla_on_one_replica(strategy):
    """All variables exist before the step is compiled, which then is that of Keras."""
    ours = made_under(
        strategy, lambda: perceptron(DistributedModel, optimizer="adam", metrics=["mae"], jit_compile=True)
    )
    stock = made_under(None, lambda: perceptron(keras.Model, optimizer="adam", metrics=["mae"], jit_compile=True))
    fit = {"batch_size": ROWS, "epochs": 3, "shuffle": False, "verbose": 0}
    assert_same_logs(stock.fit(X, Y, **fit).history, ours.fit(X, Y, **fit).history)
    assert_same_logs(
        stock.evaluate(X, Y, return_dict=True, verbose=0), ours.evaluate(X, Y, return_dict=True, verbose=0)
    )
