"""A training that differs from one replica, and how to try it again with something changed."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from mirrored_keras.parity import comparison, runs
from mirrored_keras.parity.runs import Build, Edit, Trace
from mirrored_keras.parity.variables import State


@dataclasses.dataclass(frozen=True)
class Case:
    """What the causes are looked for in.

    Attributes:
        build: The user's function, or one that converts what it returns.
        user_build: The user's function.
        batches: Global batches.
        seed: Of every run.
        one: The training on one replica.
        other: The training on several replicas that differs.
        found: How it differs.
        noise: One replica with the rows of every batch in another order, or `None`.
    """

    build: Build
    user_build: Build
    batches: Sequence[tuple[Any, ...]]
    seed: int
    one: Trace
    other: Trace
    found: comparison.Comparison
    noise: Trace | None = None

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return self.other.replicas or 1

    @property
    def start(self) -> State:
        """The state that all runs start from."""
        return self.one.start_state

    def fresh_model(self) -> keras.Model:
        """Builds the model once more, without a strategy, with the weights that training started from.

        Returns:
            The model.
        """
        from mirrored_keras.parity import variables

        keras.utils.set_random_seed(self.seed)
        model = runs.checked(self.build())
        runs.build_on(model, self.batches[0])
        variables.set_state(model, self.start)
        return model

    def retrained(self, *edits: Edit) -> tuple[Trace, comparison.Comparison]:
        """Trains on the same number of replicas with changes, and compares with one replica.

        Args:
            *edits: What to change in the model before.

        Returns:
            The training and the comparison.
        """
        trace = runs.train(
            self.build,
            self.batches,
            replicas=self.replicas,
            seed=self.seed,
            start=self.start,
            edit=_all_of(edits) if edits else None,
        )
        return trace, comparison.compare(self.one, trace, self.noise)


def _all_of(edits: Sequence[Edit]) -> Edit:
    def edit(model: keras.Model) -> contextlib.AbstractContextManager:
        contexts = [context for context in (one(model) for one in edits) if context is not None]

        @contextlib.contextmanager
        def entered():
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context)
                yield

        return entered()

    return edit
