"""Trains with a callback on R replicas and reads everything that it left behind: logs, files, decisions."""

import contextlib
import csv
import http.server
import io
import json
import re
import threading
import zipfile

import h5py
import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel
from model.regression import BATCH, X, Y, made_under

EPOCHS = 3
VALIDATION = (X[:5] * 1.1, Y[:5])  # in batches of 3: on three replicas 1, 1, 1 and 1, 1, 0 rows


def compiled(**optimizer):
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(inputs)
    model = DistributedModel(inputs, keras.layers.Dense(1, name="head")(hidden), name="model")
    model.compile(keras.optimizers.SGD(0.05, **optimizer), "mse", metrics=["mae"])
    return model


class Events(keras.callbacks.Callback):
    """Keeps what every event of training and evaluation reports."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _note(self, event, logs):
        self.seen.append((event, {name: float(value) for name, value in (logs or {}).items()}))

    def on_train_batch_end(self, batch, logs=None):
        self._note(f"batch {batch}", logs)

    def on_test_batch_end(self, batch, logs=None):
        self._note(f"test batch {batch}", logs)

    def on_epoch_end(self, epoch, logs=None):
        self._note(f"epoch {epoch}", logs)


class Run:
    """One training: History, events, final weights, and the files below a folder."""

    def __init__(self, make_callbacks, replicas, folder, *, optimizer=None, **fit):
        self.folder = folder
        self.model = made_under(replicas, lambda: compiled(**(optimizer or {})))
        self.start = self.model.get_weights()
        self.callbacks = list(make_callbacks(folder))
        self.events = Events()
        options = {
            "x": X,
            "y": Y,
            "batch_size": BATCH,
            "epochs": EPOCHS,
            "validation_data": VALIDATION,
            "validation_batch_size": 3,
            "shuffle": False,
            "verbose": 0,
            **fit,
        }
        self.history = self.model.fit(callbacks=[*self.callbacks, self.events], **options).history

    @property
    def weights(self):
        return self.model.get_weights()

    def files(self):
        """Returns relative path -> content, read by kind."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                name = re.sub(r"events\.out\.tfevents\..*", "events", str(path.relative_to(self.folder)))
                found[name] = content(path)
        return found


def content(path):
    """Returns the numbers in a file of a callback, as a dict of arrays."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return arrays(io.BytesIO(archive.read("model.weights.h5")))
    if path.suffix == ".h5":
        return arrays(path)
    if path.suffix == ".csv":
        with path.open() as file:
            rows = list(csv.DictReader(file))
        return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    return scalars(path) if ".tfevents." in path.name else {}


def arrays(file):
    """Returns name -> array of everything in an HDF5 file: weights and the state of the optimizer."""
    found = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, part: found.update({name: part[()]} if isinstance(part, h5py.Dataset) else {}))
    found.pop("mirrored_keras/json", None)  # a text, in which the number of replicas stands
    return found


def weights_of(model):
    return {f"weight {i}": value for i, value in enumerate(model.get_weights())}


def scalars(path):
    """Returns tag and step -> value of the scalars in a file of TensorBoard, and the tags of all else."""
    found = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            array = tf.make_ndarray(value.tensor) if value.HasField("tensor") else np.zeros(0)
            timed = "per_second" in value.tag
            numeric = array.ndim == 0 and array.dtype.kind == "f" and not timed
            found[f"{value.tag}, step {event.step}"] = array if numeric else np.zeros(0)
    return found


@contextlib.contextmanager
def server():
    """A server on this machine that keeps what is posted to it; yields its address and the bodies."""
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Prints nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}", bodies
        finally:
            running.shutdown()
            thread.join()


def assert_same_numbers(expected, received, what):
    """Compares two dicts of numbers; float32 after nine steps."""
    assert list(expected) == list(received), what
    for name in expected:
        np.testing.assert_allclose(received[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=f"{what}: {name}")


def assert_same_run(one, many):
    """Compares two runs: events and their logs, History, weights and files."""
    assert any(np.max(np.abs(a - b)) > 1e-3 for a, b in zip(one.start, one.weights, strict=True)), "nothing was trained"
    assert [event for event, _ in one.events.seen] == [event for event, _ in many.events.seen]
    for (event, a), (_, b) in zip(one.events.seen, many.events.seen, strict=True):
        assert_same_numbers(a, b, event)
    assert_same_numbers(one.history, many.history, "History")
    assert_same_numbers(weights_of(one.model), weights_of(many.model), "weights")
    files, other_files = one.files(), many.files()
    assert list(files) == list(other_files)
    for name in files:
        assert_same_numbers(files[name], other_files[name], name)
