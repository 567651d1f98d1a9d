"""Random layers on several replicas: streams of their own, or the draws of one replica."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import row_draws
from mirrored_keras.errors import SetupError, message
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.replica import private, seeds
from mirrored_keras.replica.instances import replaced_methods
from mirrored_keras.replica.rows import first_leaf, rows_of

MODES = ("replica", "row")

#: Layers of Keras whose output row i depends on input row i and on draw i alone.
ROW_BY_ROW = tuple(
    getattr(keras.layers, name)
    for name in (
        "AlphaDropout",
        "Attention",
        "Dropout",
        "GaussianDropout",
        "GaussianNoise",
        "RandomBrightness",
        "RandomColorDegeneration",
        "RandomColorJitter",
        "RandomContrast",
        "RandomCrop",
        "RandomErasing",
        "RandomFlip",
        "RandomGaussianBlur",
        "RandomGrayscale",
        "RandomHue",
        "RandomInvert",
        "RandomPerspective",
        "RandomPosterization",
        "RandomRotation",
        "RandomSaturation",
        "RandomSharpness",
        "RandomShear",
        "RandomTranslation",
        "RandomZoom",
        "Solarization",
    )
    if hasattr(keras.layers, name)
)

#: Layers of Keras that cannot draw by row, and why.
NOT_ROW_BY_ROW = {
    "AugMix": "it chooses by Python's `random`, while a step is traced",
    "CutMix": "it mixes rows of the batch",
    "MixUp": "it mixes rows of the batch",
    "RandAugment": "it equalises a histogram of all rows together",
    "RandomElasticTransform": "it distorts the first row of a batch of unknown size, and no other",
}


def check_mode(randomness: Any) -> None:
    """Refuses anything but the two ways to draw.

    Args:
        randomness: `compile`'s `randomness`.

    Raises:
        SetupError: It is another word.
    """
    if randomness not in MODES:
        raise SetupError(
            message(
                f"`randomness` must be one of {MODES}: streams of their own, or the draws of one replica.",
                f"randomness={randomness!r}",
                'model.compile(..., randomness="row")',
            )
        )


def state_of(model: keras.Model) -> list[list[int]]:
    """Returns the states of all seed generators of a model, in the order of its layers, and of draws without a seed.

    Args:
        model: The model.

    Returns:
        Pairs of integers; the last one is for draws without a seed, and empty if there was none yet.
    """
    own = [seeds.state_of(generator) for generator in _generators(model)]
    return [*own, seeds.unseeded_state(model.distribute_strategy)]


def set_state(model: keras.Model, states: Sequence[Sequence[int]]) -> None:
    """Lets all seed generators go on from states, on every replica.

    Args:
        model: The model.
        states: From `state_of`, of a model with the same layers, on any number of replicas.

    Raises:
        SetupError: There are not as many states as generators.
    """
    generators = _generators(model)
    if len(states) != len(generators) + 1:
        raise SetupError(
            message(
                "The random state of a model has one entry per seed generator, and one more.",
                f"entries={len(states)}, seed generators={len(generators)}",
                "other.set_random_state(model.get_random_state()), for two models with the same layers",
            )
        )
    *own, unseeded = states
    for generator, state in zip(generators, own, strict=True):
        seeds.set_state(generator, state)
    seeds.set_unseeded_state(model.distribute_strategy, unseeded)


def _generators(model):
    found = [generator for layer in private.all_layers(model) for generator in private.seed_generators_of(layer)]
    return list({id(generator): generator for generator in found}.values())


@contextlib.contextmanager
def on_all_replicas(model: keras.Model) -> Iterator[None]:
    """Lets the seed generators and random layers of a model know which replica they run on.

    Hold it around all replicas: they share the layers.

    Args:
        model: The model that runs inside the block.

    Yields:
        Nothing.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1:
        yield
        return
    replacements: list[tuple[Any, str, Callable[..., Any]]] = []
    for layer in private.all_layers(model):
        declared = getattr(layer, "draws_per_row", None)
        for generator in private.seed_generators_of(layer):
            replacements.append((generator, "next", functools.partial(_next_of, layer)))
        if declared is False:
            continue
        masks = private.mask_drawing_of(layer)
        if masks is not None:
            replacements.append((layer, masks[0], functools.partial(_by_row, layer)))
        elif declared or isinstance(layer, ROW_BY_ROW):
            replacements.append((layer, "call", functools.partial(_by_row, layer)))
    with replaced_methods(replacements):
        yield


def drawing_layers(model: keras.Model) -> tuple[list[Any], list[Any], list[Any]]:
    """Sorts the layers of a model that draw random numbers.

    Args:
        model: Any model.

    Returns:
        Those that can draw by row; those that say that their draws do not depend on the rows; all others.
    """
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for layer in private.all_layers(model):
        if not private.seed_generators_of(layer):
            continue
        declared = getattr(layer, "draws_per_row", None)
        by_row = private.mask_drawing_of(layer) is not None or declared or isinstance(layer, ROW_BY_ROW)
        found[1 if declared is False else 0 if by_row else 2].append(layer)
    return found


def _next_of(layer, draw_next):
    reason = NOT_ROW_BY_ROW.get(type(layer).__name__)
    owner = f"{_name(layer)} ({reason})" if reason else _name(layer)
    declared = getattr(layer, "draws_per_row", None) is False

    def next_seed(ordered=True):
        return seeds.seed_to_draw_from(draw_next(ordered), owner, declared=declared)

    return next_seed


def _by_row(layer, call):
    def on_rows(*args, **kwargs):
        draws = seeds.running()
        if draws is None or not draws.by_row or draws.padded or kwargs.get("training") is False:
            return call(*args, **kwargs)
        return row_draws.run(_name(layer), call, args, kwargs)

    return on_rows


def _name(layer):
    return f"{type(layer).__name__} {layer.name!r}"


@contextlib.contextmanager
def on_replica(model: keras.Model, batch: GlobalBatch, data: Any) -> Iterator[None]:
    """Lets this replica draw as `compile`'s `randomness` says, for the time of a step.

    Args:
        model: The model.
        batch: The batch of the step.
        data: The features that the model is given; a row of zeros may stand in for none.

    Yields:
        Nothing.
    """
    if private.is_default_strategy(tf.distribute.get_strategy()):
        yield
        return
    draws = seeds.Draws(by_row=batch.num_replicas > 1 and model.randomness == "row")
    if draws.by_row:
        draws.local_rows, draws.first_row = rows_of(first_leaf(data)), batch.first_row
        draws.global_rows = batch.global_rows
    with seeds.drawing(draws):
        yield


@contextlib.contextmanager
def in_own_loop(model: keras.Model, data: Any) -> Iterator[None]:
    """Does the same around one call of a model in a replica, where no step of the package does it already.

    Args:
        model: The model.
        data: What it is called on.

    Yields:
        Nothing.
    """
    strategy = tf.distribute.get_strategy()
    in_replica = not private.is_default_strategy(strategy) and not tf.distribute.in_cross_replica_context()
    if not in_replica or seeds.running() is not None or private.strategy_of_model(model) is not strategy:
        yield
        return
    with on_all_replicas(model), on_replica(model, GlobalBatch.current(data), data):
        yield
