"""The part of `DistributedModel` that random numbers need."""

from collections.abc import Sequence
from typing import Any

from mirrored_keras import randomness


class RandomModel:
    """Lets a `keras.Model` draw as `compile`'s `randomness` says; stands before it among the bases of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; in a replica without a step of the package, the call is the step that draws."""
        with randomness.in_own_loop(self, (args, kwargs)):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def get_random_state(self) -> list[list[int]]:
        """Returns the states of the model's seed generators, which Keras does not save with the weights.

        Returns:
            Pairs of integers, the same for every number of replicas; JSON can hold them.
        """
        return randomness.state_of(self)

    def set_random_state(self, state: Sequence[Sequence[int]]) -> None:
        """Lets random layers, and draws without a seed, go on from a state.

        Args:
            state: From `get_random_state` of a model with the same layers, on any number of replicas.

        Raises:
            SetupError: The model has another number of seed generators.
        """
        randomness.set_state(self, state)
