"""What the user reads when data cannot be split into global batches: the full text, before training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import BatchError, DistributedModel

X, Y = np.ones((8, 5), "float32"), np.ones((8, 1), "float32")


@pytest.fixture
def model(make_strategy):
    with make_strategy(2).scope():
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    yield model
    assert int(model.optimizer.iterations.numpy()) == 0, "an update happened before the error"


def text_of(function):
    with pytest.raises(BatchError) as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("value", [4.0, "4", 0, -1, True])
@pytest.mark.parametrize("name", ["batch_size", "validation_batch_size"])
def test_batch_size(model, name, value):
    text = text_of(lambda: model.fit(X, Y, validation_data=(X, Y), verbose=0, **{name: value}))
    assert text == (
        f"`{name}` is the number of rows of the global batch, over all replicas: a positive integer.\n"
        f"Received: {name}={value!r} (of type {type(value).__name__})\n"
        f"What to do: model.fit(x, y, {name}=64)"
    )


def test_masked_arrays(model):
    masked = np.ma.masked_greater(np.arange(40.0).reshape(8, 5), 37.0)
    weights = np.ma.masked_greater(np.arange(8.0), 6.0)
    for name, call in {
        "x": lambda: model.fit(masked, Y, verbose=0),
        "y": lambda: model.train_on_batch(X, masked),
        "sample_weight": lambda: model.evaluate(X, Y, sample_weight=weights, verbose=0),
        "validation_data": lambda: model.fit(X, Y, validation_data=({"a": masked}, Y), verbose=0),
    }.items():
        shape, count = ("(8,)", 1) if name == "sample_weight" else ("(8, 5)", 2)
        assert text_of(call) == (
            "Arrays have no mask of their own: what counts is said by sample weights, or by a layer `Masking`.\n"
            f"Received: {name}=a masked array of shape {shape} with {count} masked values\n"
            "What to do: x = x.filled(0.0); model.fit(x, y, sample_weight=...)"
        )


def test_masked_arrays_without_a_masked_value_are_arrays(model):
    values = model.evaluate(np.ma.masked_array(X), Y, verbose=0)
    assert values == model.evaluate(X, Y, verbose=0)


def test_unknown_rank(model):
    dataset = tf.data.Dataset.from_generator(lambda: iter([(X, Y)]), output_types=(tf.float32, tf.float32))
    for call in (
        lambda: model.fit(dataset, verbose=0),
        lambda: model.fit(X, Y, validation_data=dataset, verbose=0),
        lambda: model.evaluate(dataset, verbose=0),
    ):
        assert text_of(call) == (
            "Every tensor of a dataset needs a known rank, so that its rows can be shared out to replicas.\n"
            f"Received: unknown rank of x, y; element_spec={dataset.element_spec}\n"
            "What to do: x = tf.ensure_shape(x, (None, 5)); y = tf.ensure_shape(y, (None, 5)) in the function given to "
            "dataset.map, with None for the rows; or from_generator(f, output_signature=(tf.TensorSpec((None, 5)), "
            "tf.TensorSpec((None, 1))))"
        )


def test_unknown_rank_names_the_tensors_of_python_functions(model):
    def own(*parts):
        x, y = parts
        return {"a": x, "b": tf.py_function(lambda v: v, [x], tf.float32)}, y

    text = text_of(lambda: model.fit(tf.data.Dataset.from_tensors((X, Y)).map(own), verbose=0))
    assert "Received: unknown rank of x['b']; " in text
    assert "What to do: x['b'] = tf.ensure_shape(x['b'], (None, 5)) in the function" in text


def test_elements_without_rows(model):
    dataset = tf.data.Dataset.range(5).map(lambda v: (v, v))
    assert text_of(lambda: model.fit(dataset, verbose=0)) == (
        "The elements of a dataset must be batches: every tensor needs a first dimension, its rows.\n"
        f"Received: element_spec={dataset.element_spec}\n"
        "What to do: dataset.batch(64)"
    )


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_targets_of_another_shape_later(make_strategy, method):
    with make_strategy(2).scope():
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, keras.layers.Dense(3)(inputs))
        model.compile("sgd", "mse")
    model.fit(X, np.ones((8, 3)), verbose=0)
    options = {} if method == "train_on_batch" else {"verbose": 0}
    for _ in range(2):
        text = text_of(lambda: getattr(model, method)(X, np.ones((8, 2), "float32"), **options))
        assert text.startswith("Model, losses and metrics must take the data's shapes. ")
        assert "float32(None, 2)" in text.split("\n")[1]
    assert int(model.optimizer.iterations.numpy()) == 1


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_dataset_that_is_not_batched(model):
    text = text_of(lambda: model.fit(tf.data.Dataset.from_tensor_slices((X, Y)), verbose=0))
    assert text.startswith("Model, losses and metrics must take the data's shapes. ")
    assert "Received: data=(float32(None,), float32(None,)), outputs=[float32(None, 1)]\n" in text
    assert text.endswith(
        "What to do: dataset.batch(64) if its elements are single rows; else compare model.input_shape and "
        "model.output_shape with the data"
    )


def test_targets_of_another_structure(model):
    text = text_of(lambda: model.fit(X, {"a": Y, "b": Y}, verbose=0))
    assert text.splitlines()[:2] == [
        "Model, losses and metrics must take the data's shapes. y_true and y_pred have different structures.",
        "Received: data=(float32(None, 5), {a: float32(None, 1), b: float32(None, 1)}), outputs=[float32(None, 1)]",
    ]


@pytest.mark.filterwarnings("ignore:In loss categorical_crossentropy")
def test_targets_that_the_loss_refuses(model):
    with model.distribute_strategy.scope():
        model.compile("sgd", "categorical_crossentropy")
    text = text_of(lambda: model.fit(X, np.ones((8, 3), "float32"), verbose=0))
    assert "must have the same shape. Received: target.shape=(None, 3), output.shape=(None, 1)" in text


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_targets_with_other_rows_in_a_dataset(model):
    text = text_of(lambda: model.fit(tf.data.Dataset.from_tensors((X, Y[:6])), verbose=0))
    assert text == (
        "Features, targets and weights of a batch must have the same number of rows.\n"
        "Received: rows=[8, 6] (x, y, sample_weight flattened)\n"
        "What to do: tf.data.Dataset.zip((features, targets)).batch(64)   # zip single rows, then batch"
    )


def zipped_batches(**options):
    return tf.data.Dataset.zip(
        tf.data.Dataset.from_tensor_slices(X).batch(3, **options),
        tf.data.Dataset.from_tensor_slices(Y).batch(2, **options),
    )


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (lambda: zipped_batches(), [3, 2]),
        (lambda: zipped_batches(drop_remainder=True), [3, 2]),
        (lambda: ((X, Y[:7]) for _ in range(2)), [8, 7]),
        (lambda: ((X, Y, Y[:1]) for _ in range(2)), [8, 8, 1]),
    ],
)
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_batches_of_unequal_parts(model, data, rows, steps_per_execution):
    """No part may stretch over the rows of another one on a replica that has a single row of it."""
    model.steps_per_execution = steps_per_execution
    assert f"Received: rows={rows} (x" in text_of(lambda: model.fit(data(), verbose=0))


def test_weights_that_would_meet_another_dimension(make_strategy):
    """Four rows of four steps fit by accident, on one replica or on several."""
    with make_strategy(2).scope():
        inputs = keras.Input((4, 5))
        sequences = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        sequences.compile("sgd", "mse")
    x, y = np.ones((8, 4, 5), "float32"), np.ones((8, 4, 1), "float32")
    assert text_of(lambda: sequences.fit(x, y, sample_weight=np.ones(8), batch_size=5, verbose=0)) == (
        "A sample weight counts for a row, or for an element of the loss: one weight per row needs as many dimensions "
        "as the loss has.\n"
        "Received: sample_weight of shape (None,) for the losses of 'mse' of shape (None, 4)\n"
        "What to do: sample_weight[:, None]   # a weight per row, for losses of shape (None, 4)"
    )
    sequences.fit(x, y, sample_weight=np.ones((8, 1)), batch_size=5, verbose=0)


def test_weights_with_more_dimensions_than_the_losses(model):
    text = text_of(lambda: model.fit(X, Y, sample_weight=np.ones((8, 1, 1)), verbose=0))
    assert "Received: sample_weight of shape (None, 1, 1) for the losses of 'mse' of shape (None,)" in text


def test_targets_with_other_rows_in_train_on_batch(model):
    assert text_of(lambda: model.train_on_batch(X, Y[:3])) == (
        "All arrays of a batch must have the same number of rows.\n"
        "Received: rows=[8, 3] (x, y, sample_weight flattened)\n"
        "What to do: model.train_on_batch(x[:n], y[:n])"
    )
