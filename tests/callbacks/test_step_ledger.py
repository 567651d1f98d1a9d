"""The ledger has one true line per step, whatever the replicas, and a step without it has none of its operations."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch, SetupError
from mirrored_keras.callbacks import StepLedger
from mirrored_keras.data import rows_per_replica
from model.regression import X, Y, dataset, made_under, perceptron


def two_outputs(**compiled):
    inputs = keras.Input((5,))
    outputs = {
        "mean": keras.layers.Dense(1, name="mean")(inputs),
        "sum": keras.layers.Dense(1, name="sum")(inputs),
    }
    model = DistributedModel(inputs, outputs)
    losses = {
        "mean": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        "sum": keras.losses.MeanSquaredError(reduction="sum"),
    }
    model.compile("sgd", losses, **compiled)
    return model


def weighted():
    targets = {"mean": Y, "sum": Y}
    weights = {"mean": np.arange(19.0, dtype="float32"), "sum": np.ones(19, "float32")}
    return tf.data.Dataset.from_tensor_slices((X, targets, weights)).batch(7)


@pytest.mark.parametrize("steps", [1, "auto"])
@pytest.mark.parametrize("replicas", [None, 3])
def test_lines(replicas, steps, make_strategy, tmp_path):
    model = made_under(replicas, lambda: two_outputs(steps_per_execution=steps))
    ledger = StepLedger(tmp_path / "steps.csv")
    history = model.fit(weighted(), epochs=2, verbose=0, shuffle=False, callbacks=[ledger]).history
    shares = [tuple(rows_per_replica(rows, model.distribute_strategy)) for rows in (7, 7, 5)]
    assert [line["rows"] for line in ledger.lines] == 2 * shares
    assert [(line["epoch"], line["step"]) for line in ledger.lines] == [(e, s) for e in (0, 1) for s in (0, 1, 2)]
    weights = [sum(range(7)), sum(range(7, 14)), sum(range(14, 19))]
    assert [line["denominators"] for line in ledger.lines] == 2 * [{"mean": float(w), "sum": 1.0} for w in weights]
    assert [line["updates"] for line in ledger.lines] == [1, 2, 3, 4, 5, 6]
    assert history["rows"] == [19, 19] and history["skipped_updates"] == [0, 0]
    with open(tmp_path / "steps.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert [float(row["denominator_mean"]) for row in rows] == 2 * weights
    assert [int(row["rows_0"]) for row in rows] == 2 * [share[0] for share in shares]


def test_an_overflow_on_one_replica_is_a_skipped_update():
    x = np.array(X)
    x[9] = np.inf
    model = made_under(3, lambda: perceptron(DistributedModel, optimizer=scaling()))
    ledger = StepLedger()
    history = model.fit(x, Y, batch_size=7, epochs=1, verbose=0, shuffle=False, callbacks=[ledger]).history
    assert [line["skipped"] for line in ledger.lines] == [False, True, False]
    assert [line["loss_scale"] for line in ledger.lines] == [8.0, 4.0, 4.0]
    assert [line["updates"] for line in ledger.lines] == [1, 1, 2]
    assert history["skipped_updates"] == [1]


def scaling():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=8.0)


def test_accumulated_steps_are_not_skipped():
    optimizer = {"optimizer": keras.optimizers.SGD} | {}
    model = made_under(
        2,
        lambda: perceptron(DistributedModel, optimizer=optimizer["optimizer"](0.05, gradient_accumulation_steps=2)),
    )
    ledger = StepLedger()
    model.fit(dataset(), verbose=0, shuffle=False, callbacks=[ledger])
    assert [line["updates"] for line in ledger.lines] == [0, 1, 1]
    assert not any(line["skipped"] for line in ledger.lines)


class OwnStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = batch.loss(keras.losses.MeanSquaredError(name="error"), y, self(x, training=True))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss}


def test_own_steps_and_micro_batches():
    ledger = StepLedger()
    own = made_under(3, lambda: perceptron(OwnStep, loss=None))
    own.fit(dataset(), verbose=0, shuffle=False, callbacks=[ledger])
    assert [line["denominators"] for line in ledger.lines] == [{"error": 7.0}, {"error": 7.0}, {"error": 5.0}]
    pieces = made_under(3, lambda: perceptron(DistributedModel, micro_batches=2))
    pieces.fit(dataset(), verbose=0, shuffle=False, callbacks=[ledger])
    assert [list(line["denominators"].values()) for line in ledger.lines] == [[7.0], [7.0], [5.0]]


def test_a_replica_without_rows_and_a_generator():
    def batches():
        yield X[:2], Y[:2]
        yield X[2:9], Y[2:9]

    ledger = StepLedger()
    model = made_under(3, lambda: perceptron(DistributedModel))
    model.fit(batches(), steps_per_epoch=2, verbose=0, shuffle=False, callbacks=[ledger])
    assert [line["rows"] for line in ledger.lines] == [(1, 1, 0), (3, 2, 2)]


def operations(model):
    """Returns how many operations the graph of a step has."""
    batches = iter(model.distribute_strategy.experimental_distribute_dataset(dataset().take(2)))
    concrete = model.train_function._on_iterator.get_concrete_function(batches)

    def count(graph):
        inner = [count(function.graph) for function in graph._functions.values() if hasattr(function, "graph")]
        return len(graph.get_operations()) + sum(inner)

    return count(concrete.graph)


def test_weights_are_those_without_it_and_nothing_of_it_stays():
    def trained(*callbacks):
        model = made_under(2, lambda: perceptron(DistributedModel))
        model.fit(dataset(), epochs=2, verbose=0, shuffle=False, callbacks=list(callbacks))
        return model

    plain, audited = trained(), trained(StepLedger())
    for a, b in zip(plain.get_weights(), audited.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert operations(plain) == operations(audited)
    records = audited.train_function.start_records()
    assert operations(audited) > operations(plain)
    audited.train_function.stop_records(records)


def test_a_stock_model_is_refused():
    model = perceptron(keras.Model)
    with pytest.raises(SetupError, match=r"(?s)`StepLedger` reads what the steps.*from_model"):
        model.fit(X, Y, verbose=0, callbacks=[StepLedger()])
