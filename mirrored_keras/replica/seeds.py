"""Seeds of random numbers on several replicas: streams of their own, and a generator for draws without a seed.

A `keras.random.SeedGenerator` keeps a mirrored variable `[seed, counter]` that every replica advances alike.
Left alone, all replicas draw the same numbers from it.
"""

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import collective, private

_RUNNING = threading.local()  # every replica runs in a thread of its own


@dataclasses.dataclass
class Draws:
    """How the replica of this thread draws while a step runs.

    Attributes:
        by_row: Whether it draws its rows of what one replica would draw, or a stream of its own.
        local_rows: Rows of the tensors that the model is given; 1 where a row of zeros stands in for none.
        first_row: Index of its first row in the global batch.
        global_rows: G.
        padded: Whether the running layer sees all rows of the global batch.
    """

    by_row: bool
    local_rows: Any = None
    first_row: Any = None
    global_rows: Any = None
    padded: bool = False


def running() -> Draws | None:
    """Returns how the replica of this thread draws, or `None` where no step runs."""
    return getattr(_RUNNING, "draws", None)


@contextlib.contextmanager
def drawing(draws: Draws) -> Iterator[None]:
    """Lets the replica of this thread draw in the given way, also from operations without a seed.

    Args:
        draws: The way.

    Yields:
        Nothing.
    """
    before, _RUNNING.draws = running(), draws
    strategy = tf.distribute.get_strategy()
    generator = _UNSEEDED.get(id(strategy))
    unseeded = private.unseeded_generator()
    if generator is not None:
        private.set_unseeded_generator(generator)
    try:
        yield
    finally:
        _RUNNING.draws = before
        if generator is not None:
            private.set_unseeded_generator(unseeded)


def seed_to_draw_from(seed: tf.Tensor, owner: str, *, declared: bool = False) -> tf.Tensor:
    """Returns the seed that this replica draws from, out of the one that all replicas have.

    Args:
        seed: The state of a generator: an integer vector `[seed, counter]`, the same on every replica.
        owner: Whose generator it is, for a warning.
        declared: The owner says that its draws do not depend on the rows.

    Returns:
        Same shape and dtype. The seed itself outside a step, on the first replica, and where draws are
        made by row; else `[hash(seed, replica), counter]`, which no other replica and no other step has.
    """
    draws = running()
    if draws is None:
        return seed
    if draws.by_row:
        if not (draws.padded or declared):
            _warn(owner)
        return seed
    replica = collective.replica_in_context()
    if replica == 0:
        return seed
    key = tf.stack([seed[0], tf.constant(replica, seed.dtype)])
    hashed = tf.random.stateless_uniform([], seed=key, minval=None, maxval=None, dtype=seed.dtype)
    return tf.stack([hashed, seed[1]])


def _warn(owner):
    warnings.warn(
        f"{owner} draws random numbers, and nobody can tell which of them belong to which row of the global batch: "
        'with randomness="row", every replica draws the same numbers here, which may not be those of one replica.\n'
        "What to do: set `draws_per_row` on the layer: True if row i of its output depends on row i of its inputs and "
        "of its draws alone, False if its draws do not depend on the rows. In an own step: batch.draw(function).",
        stacklevel=2,
    )


class UnseededGenerator(keras.random.SeedGenerator):
    """The generator of random operations without a seed, inside the replicas of one strategy.

    Keras keeps one per thread, and makes it where it is first used, which fails inside a replica. This one is
    there before, and takes its seed where Keras would: at the first draw.
    """

    def __init__(self) -> None:
        super().__init__(seed=0, name="unseeded")
        self.was_used = False
        self._seed: int | None = None

    def next(self, ordered: bool = True) -> Any:
        """Returns the next seed of this replica.

        Args:
            ordered: As for `keras.random.SeedGenerator`.

        Returns:
            An integer vector of two elements.
        """
        self.was_used = True
        with _LOCK:
            if self._seed is None:
                self._seed = private.make_default_seed()
                self.resume([self._seed, 0])
        return seed_to_draw_from(super().next(ordered), "A random operation without a seed")

    def restart(self) -> None:
        """Takes a new seed at the next draw, as after `keras.utils.set_random_seed`."""
        self._seed = None
        if self.was_used:  # a traced step draws without calling `next`
            self.resume([private.make_default_seed(), 0])

    def resume(self, state: Sequence[int]) -> None:
        """Goes on from a state, on all replicas.

        Args:
            state: Two integers.
        """
        self._seed = int(state[0])
        if list(state) != state_of(self):
            set_state(self, state)


def state_of(generator: keras.random.SeedGenerator) -> list[int]:
    """Returns the state of a generator as two integers, whatever strategy it was made under.

    Args:
        generator: The generator.

    Returns:
        Those of the first replica.
    """
    with tf.init_scope():
        return _copies(generator)[0].numpy().tolist()


def set_state(generator: keras.random.SeedGenerator, state: Sequence[int]) -> None:
    """Sets the state of a generator on all replicas, whatever strategy it was made under.

    Args:
        generator: The generator.
        state: Two integers.
    """
    with tf.init_scope():
        for copy in _copies(generator):
            copy.assign(state)


def _copies(generator):
    variable = generator.state.value
    return getattr(variable, "values", [variable])


_LOCK = threading.Lock()
_IN_BLOCK: set[int] = set()  # strategies whose models run
_UNSEEDED: dict[int, UnseededGenerator] = {}  # kept for ever, as the strategies that own their variables


def unseeded_generator(strategy: tf.distribute.Strategy) -> UnseededGenerator:
    """Returns the generator of draws without a seed inside the replicas of a strategy, made at the first call.

    Args:
        strategy: The strategy.

    Returns:
        The generator.
    """
    if id(strategy) not in _UNSEEDED:
        with strategy.scope(), tf.init_scope():
            _UNSEEDED[id(strategy)] = UnseededGenerator()
    return _UNSEEDED[id(strategy)]


@contextlib.contextmanager
def one_unseeded_stream(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets draws without a seed inside the replicas go on where those outside are, and back.

    Args:
        strategy: The strategy of the model that runs inside the block.

    Yields:
        Nothing.
    """
    if private.is_default_strategy(strategy) or id(strategy) in _IN_BLOCK:
        yield  # validation inside `fit` goes on where training is
        return
    generator = unseeded_generator(strategy)
    outside = private.unseeded_generator()
    if outside is None:
        generator.restart()
    else:
        generator.resume(state_of(outside))
    _IN_BLOCK.add(id(strategy))
    try:
        yield
    finally:
        _IN_BLOCK.discard(id(strategy))
    if generator.was_used:
        outside = private.unseeded_generator() or keras.random.SeedGenerator(0, name="unseeded")
        set_state(outside, state_of(generator))
        private.set_unseeded_generator(outside)


def unseeded_state(strategy: tf.distribute.Strategy) -> list[int]:
    """Returns where draws without a seed are inside `one_unseeded_stream`, or outside any.

    Args:
        strategy: The strategy of the model that runs.

    Returns:
        Two integers; nothing where no draw was made yet.
    """
    if id(strategy) in _IN_BLOCK:
        generator = unseeded_generator(strategy)
        return state_of(generator) if generator.was_used else []
    outside = private.unseeded_generator()
    return [] if outside is None else state_of(outside)


def set_unseeded_state(strategy: tf.distribute.Strategy, state: Sequence[int]) -> None:
    """Lets draws without a seed go on from a state, inside `one_unseeded_stream` or outside any.

    Args:
        strategy: The strategy of the model that runs.
        state: From `unseeded_state`, of any number of replicas.
    """
    if not state:
        return
    if id(strategy) in _IN_BLOCK:
        generator = unseeded_generator(strategy)
        generator.was_used = True
        generator.resume(state)
        return
    outside = private.unseeded_generator() or keras.random.SeedGenerator(0, name="unseeded")
    set_state(outside, state)
    private.set_unseeded_generator(outside)
