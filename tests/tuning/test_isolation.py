"""Trials do not touch each other: callbacks, paths and seeds are of one execution."""

import csv
import pathlib
import threading

import keras
import pytest
import tensorflow as tf

from mirrored_keras import Checkpoint, Resume, SetupError, tuning
from mirrored_keras.tuning.callback_copies import callbacks_for, check_callbacks
from mirrored_keras.tuning.trial_context import TrialContext, seed_of
from tuning.searches import build_eager, function_search, search


def context(folder, trial_id="3", execution=1):
    return TrialContext(
        trial_id, execution, None, folder=str(folder / f"trial_{trial_id}/execution{execution}"), seed=7
    )


class Counts(keras.callbacks.Callback):
    def __init__(self, **members):
        super().__init__()
        self.seen = []
        vars(self).update(members)

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(epoch)


def test_members_are_copied_and_what_they_share_stays_shared(tmp_path):
    shared = [1]
    given = [Counts(log=shared), Counts(log=shared)]
    copies = callbacks_for(given, context(tmp_path))
    assert copies[0].seen is not given[0].seen and copies[0].log is copies[1].log is not shared


def generator():
    yield 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda folder: tf.summary.create_file_writer(str(folder / "logs")), "ResourceSummaryWriter"),
        (lambda folder: tf.data.Dataset.range(3), "RangeDataset"),
        (lambda folder: open(folder / "file", "w"), "TextIOWrapper"),  # noqa: SIM115
        (lambda folder: threading.Lock(), "lock"),
        (lambda folder: generator(), "generator"),
        (lambda folder: keras.Sequential([keras.Input((1,))]), "Sequential"),
    ],
    ids=["writer", "dataset", "file", "lock", "generator", "model"],
)
def test_a_member_that_cannot_be_copied_is_named(make, name, tmp_path):
    member = make(tmp_path)
    for held, where in (({"held": member}, "held"), ({"held": {"a": [member]}}, r"held\['a'\]\[0\]")):
        with pytest.raises(SetupError, match=rf"callbacks\[1\]\.{where}=.*of type \w*{name}"):
            check_callbacks([Counts(), Counts(**held)])
    tf.constant(1) + 1  # copying a writer leaves TensorFlow unusable
    if hasattr(member, "close"):
        member.close()


class Refuses:
    def __deepcopy__(self, memo):
        raise RuntimeError("not me")


def test_a_member_of_another_kind_is_named_with_its_error():
    with pytest.raises(SetupError, match=r"callbacks\[0\]\.held=.*RuntimeError: not me"):
        check_callbacks([Counts(held=Refuses())])


def test_nothing_is_trained_before_callbacks_are_checked(tmp_path):
    tuner = tuning.RandomSearch(build_eager, "val_loss", max_trials=1, directory=tmp_path)
    with pytest.raises(SetupError, match=r"callbacks\[0\]\.lock"):
        search(tuner, callbacks=[Counts(lock=threading.Lock())])
    assert not tuner.oracle.trials


def test_what_is_no_callback_is_refused(tmp_path):
    with pytest.raises(SetupError, match="are callbacks, or functions that make them"):
        callbacks_for([3], context(tmp_path))


@pytest.mark.parametrize(
    "make",
    [
        lambda base: (keras.callbacks.BackupAndRestore(f"{base}/backup"), "backup_dir"),
        lambda base: (keras.callbacks.TensorBoard(f"{base}/logs"), "log_dir"),
        lambda base: (Resume(f"{base}/states"), "folder"),
        lambda base: (Checkpoint(f"{base}/files"), "folder"),
        lambda base: (keras.callbacks.CSVLogger(f"{base}/log.csv"), "filename"),
        lambda base: (keras.callbacks.ModelCheckpoint(f"{base}/best.keras"), "filepath"),
    ],
    ids=["BackupAndRestore", "TensorBoard", "Resume", "Checkpoint", "CSVLogger", "ModelCheckpoint"],
)
@pytest.mark.parametrize("as_factory", [False, True])
def test_every_path_is_of_one_execution(make, as_factory, tmp_path):
    given, attribute = make(tmp_path)
    old = str(getattr(given, attribute))
    callbacks = [lambda: make(tmp_path)[0]] if as_factory else [given]
    paths = set()
    for trial_id, execution in (("3", 0), ("3", 1), ("4", 0)):
        one = context(tmp_path, trial_id, execution)
        (made,) = callbacks_for(callbacks, one)
        path = str(getattr(made, attribute))
        assert f"/{trial_id}/execution{execution}" in path
        # none of the other names that it keeps is the old one
        texts = [str(value) for value in vars(made).values() if isinstance(value, (str, pathlib.Path))]
        assert not [text for text in texts if text == old or (text.startswith(old) and one.name not in text)]
        paths.add(path)
    assert len(paths) == 3 and str(getattr(given, attribute)) == old


def test_a_path_in_the_folder_of_the_execution_stays(tmp_path):
    def factory(given):
        return [keras.callbacks.CSVLogger(f"{given.folder}/log.csv"), Counts(seed=given.seed)]

    one = context(tmp_path)
    logger, counts = callbacks_for(factory, one)
    assert logger.filename == f"{one.folder}/log.csv" and counts.seed == 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_trial_does_not_resume_another_one(tmp_path):
    """Stock: trial 1 goes on from the weights and the epoch that trial 0 left behind when it died."""
    died = []

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and not died:
                died.append(epoch)
                raise ValueError("dies in its second epoch")

    tuner = tuning.RandomSearch(build_eager, "val_loss", max_trials=2, seed=1, directory=tmp_path)
    callbacks = [
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        Dies(),
    ]
    search(tuner, callbacks=callbacks)
    assert [row["outcome"] for row in tuner.results()] == ["failed", "completed"]
    with open(tmp_path / tuner.oracle.start_order[1] / "execution0" / "log.csv", encoding="utf-8") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1"]


def test_seeds_differ_and_follow_from_the_search():
    seeds = {
        seed_of(search, trial, execution=execution, attempt=attempt)
        for search in (1, 2)
        for trial in ("0", "1")
        for execution in (0, 1)
        for attempt in (0, 1)
    }
    assert len(seeds) == 16 and all(0 <= seed < 2**31 for seed in seeds)


def test_tensorboard_gets_the_hyperparameters(tmp_path):
    tuner = tuning.RandomSearch(build_eager, "val_loss", max_trials=1, seed=1, directory=tmp_path)
    search(tuner, epochs=1, callbacks=[keras.callbacks.TensorBoard(str(tmp_path / "logs"))])
    (folder,) = (tmp_path / "logs").iterdir()
    files = list((folder / "execution0").rglob("events*"))
    assert any(b"_hparams_" in path.read_bytes() for path in files)


def test_results_of_the_table_are_not_hidden_by_hyperparameters(tmp_path):
    tuner = function_search(lambda hp: hp.Choice("score", [5.0]), tmp_path, max_trials=1)
    assert tuner.results()[0]["score"] == 5.0 == tuner.results()[0]["hp.score"]
