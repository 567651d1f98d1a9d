"""Trains one model on one and on R replicas and compares everything that can be seen, to a tolerance."""

import keras
import numpy as np

import tolerances
from invariance.compare import assert_within, logs_error, weights_error
from model.regression import made_under

EPOCHS = 2
ROWS, BATCH = (
    22,
    9,
)  # 9, 9 and 4 rows: on four replicas 3, 2, 2, 2 and 1, 1, 1, 1; on eight 2 and 1s, then 1, 1, 1, 1, 0, 0, 0, 0


class BatchLogs(keras.callbacks.Callback):
    """Keeps what every batch of training and evaluation reports."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append({name: np.array(value) for name, value in logs.items()})

    on_test_batch_end = on_train_batch_end


def trained(make, replicas, data, **fit):
    """Fits and evaluates; returns first and last weights, History, batch logs and the evaluation."""
    model = made_under(replicas, make)
    start, seen = model.get_weights(), BatchLogs()
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": [seen], **fit}
    history = model.fit(*data, **options).history
    evaluation = model.evaluate(*data[:2], batch_size=5, verbose=0, return_dict=True, callbacks=[seen])
    return start, model.get_weights(), history, seen.seen, evaluation


# Up to 3.12 Keras adds 1e-7 to the number of unmasked elements on one replica; a loss may make a mask itself (Circle).
MASKS_ADD = 2e-7 if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13) else 0.0


def assert_trains_as_one(make, counts, data, *, masked=False, **fit):
    """Compares each number of replicas with one; fails, too, where nothing was trained."""
    start, weights, history, batches, evaluation = trained(make, None, data, **fit)
    assert max(np.max(np.abs(a - b)) for a, b in zip(start, weights, strict=True)) > 1e-4, "nothing was trained"
    assert all(len({str(logs[name]) for logs in batches}) > 1 for name in batches[0]), "a number never changes"
    allowed = tolerances.weights(len(history["loss"]) * -(-len(data[0]) // BATCH), keras.config.floatx())
    allowed = max(allowed, MASKS_ADD) if masked else allowed
    for replicas in counts:
        _, *many = trained(make, replicas, data, **fit)
        assert_within(weights_error(weights, many[0], start), allowed, f"weights of {replicas} replicas")
        assert_within(logs_error(history, many[1]), allowed, f"History of {replicas} replicas")
        assert len(batches) == len(many[2])
        for number, (one, several) in enumerate(zip(batches, many[2], strict=True)):
            assert_within(logs_error(one, several), allowed, f"logs of batch {number} of {replicas} replicas")
        assert_within(logs_error(evaluation, many[3]), allowed, f"evaluate on {replicas} replicas")
