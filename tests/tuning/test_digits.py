"""From a default configuration to a better one, on real digits and two replicas."""

import keras

from mirrored_keras import tuning
from mirrored_keras.data import digits_dataset


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(hp.Int("units", 8, 48), activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rate = hp.Float("rate", 1e-3, 1.0, sampling="log", default=1e-2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


def test_a_search_improves_on_the_default_configuration(make_strategy, tmp_path):
    train = digits_dataset("train", global_batch_size=101, shuffle_seed=1)  # the last batch has 19 rows
    test = digits_dataset("test", global_batch_size=101)
    tuner = tuning.RandomSearch(
        build,
        "val_accuracy",
        max_trials=3,
        seed=4,
        directory=tmp_path,
        distribution_strategy=make_strategy(2),
        keep_checkpoints=1,
    )
    default = tuner.build_trial(tuning.HyperParameters(), seed=1)
    history = default.fit(train, validation_data=test, epochs=2, shuffle=False, verbose=0)
    tuner.search(train, validation_data=test, epochs=2, shuffle=False, verbose=0)
    best = tuner.get_best_models()[0].evaluate(test, return_dict=True, verbose=0)["accuracy"]
    assert best == tuner.results()[int(tuner.oracle.get_best_trials()[0].trial_id)]["score"]
    assert best > max(history.history["val_accuracy"]) + 0.1
