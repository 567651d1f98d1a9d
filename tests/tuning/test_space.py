"""The global batch as a hyperparameter, and batches that do not fit into memory."""

import keras
import pytest
import tensorflow as tf

from mirrored_keras import tuning
from mirrored_keras.tuning import global_batch_size, scaled_learning_rate
from tuning.searches import build_eager, data


def test_learning_rates_follow_the_batch():
    for rule, expected in (("constant", 0.1), ("linear", 0.4), ("sqrt", 0.2)):
        hp = tuning.HyperParameters()
        batch = global_batch_size(hp, [128, 32])
        assert batch == 128
        rate = scaled_learning_rate(hp, batch, base_batch=32, bounds=(0.1, 1.0), rule=rule)
        assert rate == pytest.approx(expected)
        assert hp.values == {"global_batch_size": 128, "base_learning_rate": 0.1}
    with pytest.raises(tuning.TuningError, match="`rule` is one of"):
        scaled_learning_rate(hp, batch, base_batch=32, bounds=(0.1, 1.0), rule="cubic")
    for wrong in ([], [0], [1.5], [True]):
        with pytest.raises(tuning.TuningError, match="positive number of rows"):
            global_batch_size(hp, wrong)


SEEN = []  # a list of the layer would be a copy


class Memory(keras.layers.Layer):
    """Runs out of memory for pieces of more rows than fit."""

    def __init__(self, most_rows):
        super().__init__()
        self.most_rows = most_rows

    def call(self, inputs, training=False):
        if training and tf.executing_eagerly():
            SEEN.append(len(inputs))
            if len(inputs) > self.most_rows:
                raise tf.errors.ResourceExhaustedError(None, None, "no memory left")
        return inputs


def searched(folder, most_rows, batches):
    def build(hp):
        global_batch_size(hp, batches)
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(1)(Memory(most_rows)(inputs))
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    tuner = tuning.GridSearch(build, "val_loss", seed=1, directory=folder)
    x, y, held_out = data()
    tuner.search(x, y, validation_data=held_out, verbose=0, shuffle=False)
    return tuner


def test_a_batch_that_does_not_fit_is_trained_in_pieces_with_the_same_result(tmp_path):
    SEEN.clear()
    rows = searched(tmp_path / "small", 4, [16]).results()
    assert max(SEEN) == 16 and set(SEEN[-4:]) <= {1, 4}  # the last batch has two rows
    assert rows[0]["micro_batches"] == 4 and rows[0]["outcome"] == "completed"
    whole = searched(tmp_path / "large", 64, [16]).results()
    assert whole[0]["micro_batches"] == 1
    assert rows[0]["score"] == pytest.approx(whole[0]["score"], rel=1e-5)


def test_what_does_not_fit_at_all_is_infeasible_and_the_search_goes_on(tmp_path):
    def build(hp):
        model = build_eager(hp)
        # the last one is the first to change
        if hp.Choice("size", [0, 1, 2, 3]) > 0:
            raise MemoryError("too big")  # in `build`: pieces would not help
        return model

    tuner = tuning.GridSearch(build, "val_loss", max_trials=4, directory=tmp_path)
    x, y, held_out = data()
    tuner.search(x, y, batch_size=16, validation_data=held_out, verbose=0)
    assert tuner.outcomes() == {"completed": 1, "stopped": 0, "failed": 0, "infeasible": 3, "running": 0}
    assert "Too big for the memory" in tuner.results()[-1]["reason"]


def test_the_batch_size_is_left_to_datasets_and_own_fits(tmp_path):
    sizes = []

    class OwnFit(tuning.HyperModel):
        def build(self, hp):
            global_batch_size(hp, [16])
            return build_eager(hp)

        def fit(self, hp, model, x, y, **options):
            sizes.append(options.get("batch_size"))
            batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(hp.get("global_batch_size"))
            return model.fit(batches, **options)

    x, y, _ = data()
    tuner = tuning.RandomSearch(OwnFit(), "loss", max_trials=1, directory=tmp_path)
    tuner.search(x, y, shuffle=False, verbose=0)
    assert sizes == [None]
