"""Run by `test_checks.py` in both workers: what differs between workers is refused, and files are written once.

python checks.py FOLDER
"""

import os
import pathlib
import sys
import time

from workers.strategies import worker_strategy

STRATEGY = worker_strategy(timeout_seconds=60)

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import Checkpoint, Resume, export_model, load_model, load_weights, save_model, save_weights
from mirrored_keras.errors import BatchError, CheckpointError, CollectiveError, MirroredKerasError, SetupError
from mirrored_keras.replica import watchdog, workers
from mirrored_keras.workers import is_chief
from workers.training import arrays, build, main

FOLDER = pathlib.Path(sys.argv[1])
INDEX = workers.index_of(STRATEGY)


def refused(run, kind, *parts):
    """Runs what must be refused within seconds, and returns the message."""
    start = time.monotonic()
    try:
        run()
    except MirroredKerasError as error:
        assert type(error) is kind, repr(error)
        assert all(part in str(error) for part in parts), str(error)
        return {"message": str(error), "after": round(time.monotonic() - start, 2)}
    raise AssertionError("nothing was refused")


def other_epochs(s):
    x, y, _ = arrays()
    model = build(s)
    return refused(
        lambda: model.fit(x, y, epochs=1 + INDEX, verbose=0), SetupError, "epochs=1 on worker 0, 2 on worker 1"
    )


def other_steps(s):
    data = tf.data.Dataset.from_tensor_slices(arrays()).batch(4).repeat()
    model = build(s)
    return refused(
        lambda: model.fit(data, steps_per_epoch=3 - INDEX, shuffle=False, verbose=0),
        SetupError,
        "steps_per_epoch=3 on worker 0",
    )


def other_rows(s):
    x, y, _ = arrays(21 - INDEX)
    return refused(lambda: build(s).fit(x, y, shuffle=False, verbose=0), BatchError, "21 on worker 0, 20 on worker 1")


def other_number_of_batches(s):
    """Known only to Keras' iterator: batches of a PyDataset."""
    from workers.training import Sequence

    model = build(s)
    return refused(
        lambda: model.fit(Sequence(rows=30 - 10 * INDEX), verbose=0), BatchError, "batches=4 on worker 0, 3 on"
    )


def other_method(s):
    x, y, _ = arrays()
    model = build(s)
    run = (lambda: model.fit(x, y, verbose=0)) if INDEX == 0 else (lambda: model.evaluate(x, y, verbose=0))
    return refused(run, SetupError, "method=fit on worker 0, evaluate on worker 1")


def shuffle_without_a_seed(s):
    model = build(s)  # sets seeds, from which a shuffle would take its own
    tf.random.set_seed(None)
    data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(21).batch(4)
    return refused(lambda: model.fit(data, shuffle=False, verbose=0), BatchError, "a shuffle without a seed")


def shuffle_with_other_seeds(s):
    data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(21, seed=INDEX + 1).batch(4)
    return refused(lambda: build(s).fit(data, shuffle=False, verbose=0), SetupError, "seeds and order")


def arrays_with_other_seeds(s):
    x, y, _ = arrays()
    model = build(s)
    tf.random.set_seed(INDEX)
    found = refused(lambda: model.fit(x, y, verbose=0), SetupError, "tf.random.set_seed=0 on worker 0, 1 on worker 1")
    tf.random.set_seed(4)
    return found


def weights_of_the_chief_alone(s):
    x, y, _ = arrays()
    model = build(s)
    model.fit(x, y, verbose=0)
    before = model.get_weights()
    if is_chief(s):
        model.set_weights([weight + 1 for weight in before])
    found = refused(lambda: model.fit(x, y, verbose=0), SetupError, "differs from that of worker 0", "kernel")
    refused(lambda: model.evaluate(x, y, verbose=0), SetupError, "differs from that of worker 0")
    model.set_weights(before)
    model.fit(x, y, verbose=0)
    if is_chief(s):
        model.optimizer.learning_rate.assign(0.5)
    return found | refused(lambda: model.fit(x, y, verbose=0), SetupError, "learning_rate")


def wrong_options(s):
    model = build(s, jit_compile="auto")
    return refused(lambda: model.compile("sgd", "mse", jit_compile=True), SetupError, "XLA")


def callbacks_in_one_folder(s):
    """Both workers name the same files; every file is written once, whole."""
    x, y, _ = arrays()
    callbacks = keras.callbacks
    model = build(s, width=300)
    checkpoint = Checkpoint(FOLDER / "ours")
    model.fit(x, y, batch_size=8, epochs=3, validation_data=(x, y), verbose=0, callbacks=[
        callbacks.ModelCheckpoint(FOLDER / "every-{epoch}.keras"),
        callbacks.ModelCheckpoint(FOLDER / "best.weights.h5", save_weights_only=True, save_best_only=True),
        callbacks.ModelCheckpoint(FOLDER / "model.h5"),
        callbacks.BackupAndRestore(FOLDER / "backup"),
        callbacks.CSVLogger(FOLDER / "log.csv"),
        callbacks.TensorBoard(FOLDER / "board"),
        callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
        callbacks.ReduceLROnPlateau("loss", patience=1),
        callbacks.TerminateOnNaN(),
        checkpoint,
        Resume(FOLDER / "with others"),
    ])  # fmt: skip
    workers.gathered(s, [0], what="a test")  # the chief has written
    names = sorted(os.fspath(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
    board = [name for name in names if name.startswith("board/train")]
    assert len(board) == 1, names
    assert len((FOLDER / "log.csv").read_text().splitlines()) == 4
    assert {"every-1.keras", "every-2.keras", "every-3.keras", "best.weights.h5", "model.h5"} <= set(names), names
    assert not [name for name in names if name.startswith("backup") or "writing" in name], names
    assert len(checkpoint.saved()) == 3
    checkpoint.restore_latest(model)
    expected = model.evaluate(x, y, verbose=0)
    for path in ("every-3.keras", "model.h5"):
        restored = load_model(FOLDER / path, s)
        np.testing.assert_allclose(restored.evaluate(x, y, verbose=0), expected, rtol=1e-6)
        restored.fit(x, y, verbose=0)
    load_weights(model, FOLDER / "best.weights.h5")
    # the next `fit` of the same training finds its state, on both workers
    for epochs in (1, 2):
        history = build(s).fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Resume(FOLDER / "resume")])
    assert history.epoch == [0, 1]


def files(s):
    """Called by both workers, with the same names."""
    model = build(s)
    model.fit(*arrays()[:2], verbose=0)
    save_model(model, FOLDER / "by function.keras")
    save_weights(model, FOLDER / "by function.weights.h5")
    model.save(FOLDER / "by method.h5")
    model.save_weights(FOLDER / "by method.weights.h5")
    export_model(model, FOLDER / "export" / "1")
    model.export(FOLDER / "export" / "2", verbose=False)
    workers.gathered(s, [0], what="a test")
    load_weights(model, FOLDER / "by method.weights.h5")
    model.load_weights(FOLDER / "by function.weights.h5")
    model.fit(*arrays()[:2], verbose=0)
    x = arrays()[0]
    served = tf.saved_model.load(os.fspath(FOLDER / "export" / "1"))
    assert served.serve(x).shape == (21, 1)
    if not is_chief(s):
        model.save(FOLDER / "not the chief.keras")
    workers.gathered(s, [0], what="a test")
    assert not (FOLDER / "not the chief.keras").exists()


def folders_that_are_not_shared(s):
    x, y, _ = arrays()
    model = build(s)
    folder = FOLDER / f"own-{INDEX}"
    if INDEX == 0:
        source = sorted((FOLDER / "resume").iterdir())[-1]
        folder.mkdir()
        (folder / source.name).write_bytes(source.read_bytes())
    return refused(
        lambda: model.fit(x, y, verbose=0, callbacks=[Resume(folder)]), CheckpointError, "worker 1: no state"
    )


def evaluation_by_the_chief_alone(s):
    """Ends the life of the group: a collective that failed poisons all others."""
    x, y, _ = arrays()
    model = build(s)
    model.fit(x, y, verbose=0)
    watchdog.set_limit(s, 4)
    if is_chief(s):
        found = refused(lambda: model.evaluate(x, y, verbose=0), CollectiveError, "the start of `evaluate`", "4 s")
        assert found["after"] < 30, found
        (FOLDER / "refused").touch()
        return found
    end = time.monotonic() + 60
    while time.monotonic() < end and not (FOLDER / "refused").exists():
        time.sleep(0.1)
    return {}


CASES = {
    function.__name__: function
    for function in (
        other_epochs, other_steps, other_rows, other_number_of_batches, other_method, shuffle_without_a_seed,
        shuffle_with_other_seeds, arrays_with_other_seeds, weights_of_the_chief_alone, wrong_options,
        callbacks_in_one_folder, files, folders_that_are_not_shared, evaluation_by_the_chief_alone,
    )
}  # fmt: skip


if __name__ == "__main__":
    main(CASES, sys.argv[2:], STRATEGY)
    sys.stdout.flush()
    os._exit(0)  # the last case leaves collectives behind that TensorFlow would wait for
