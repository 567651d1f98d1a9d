"""What `DistributedModel.compile` takes beside the arguments of `keras.Model.compile`."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.micro_batches import check_micro_batches
from mirrored_keras.randomness import check_mode
from mirrored_keras.replica import private
from mirrored_keras.serialization import completed


class CompileOptions(keras.Model):
    """Keeps, checks and serialises the options of `compile` that Keras does not know."""

    # set by Keras' trainer, which has no types
    train_function: Any
    test_function: Any

    #: `compile`'s `randomness`.
    randomness: str = "replica"
    #: Whether `compile` was given `steps_per_execution="auto"`.
    chooses_steps_per_execution = False
    #: Descriptions of the data that model and losses were tried on since `compile`.
    seen_data_shapes: tuple[str, ...] = ()
    #: Structure of a batch -> ranks of its tensors, when it was last trained on or evaluated.
    ranks_of_data: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    _micro_batches = 1
    _jit_compile_as_given: bool | str = "auto"

    @property
    def has_own_train_step(self) -> bool:
        """Whether a subclass overrides `train_step`."""
        raise NotImplementedError

    @property
    def micro_batches(self) -> int:
        """Number of pieces that a replica's rows are trained in; may be set between two calls of `fit`."""
        return self._micro_batches

    @micro_batches.setter
    def micro_batches(self, value: int) -> None:
        own = self.has_own_train_step
        self._micro_batches = check_micro_batches(value, has_own_train_step=own, randomness=self.randomness)
        self.train_function = None

    def keep_options(self, *, steps_per_execution: Any, jit_compile: Any, micro_batches: Any, randomness: Any) -> None:
        """Keeps what `compile` was given.

        Args:
            steps_per_execution: A number or "auto".
            jit_compile: True, False or "auto".
            micro_batches: k.
            randomness: "replica" or "row".

        Raises:
            SetupError: An option is none of these, or they do not go together.
        """
        check_mode(randomness)
        self.randomness = randomness
        self._jit_compile_as_given = jit_compile
        self.chooses_steps_per_execution = steps_per_execution == "auto"
        self.micro_batches = micro_batches
        self.seen_data_shapes = ()
        self.ranks_of_data = ()

    def trace_again_for_other_ranks(self, data: Any) -> None:
        """Lets the steps be traced anew where tensors have other ranks than those of the last call had.

        Args:
            data: Specs, tensors or arrays of one batch.
        """
        leaves, structure = keras.tree.flatten(data), str(keras.tree.map_structure(lambda leaf: 0, data))
        ranks = tuple(tf.TensorShape(getattr(leaf, "shape", None)).rank for leaf in leaves)
        known = dict(self.ranks_of_data).get(structure)
        if known == ranks:
            return
        self.ranks_of_data = tuple({**dict(self.ranks_of_data), structure: ranks}.items())
        for runner in (self.train_function, self.test_function):
            if known is not None and runner is not None:
                runner.trace_again()

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns the serialised arguments of `compile`, `None` if the model is not compiled."""
        config = super().get_compile_config()
        if not config:
            return config
        for name in ("loss", "metrics", "weighted_metrics"):
            completed(private.compile_argument(self, name), config.get(name))
        if self.chooses_steps_per_execution:
            config["steps_per_execution"] = "auto"
        if self.micro_batches > 1:
            config["micro_batches"] = self.micro_batches
        if self.randomness != "replica":
            config["randomness"] = self.randomness
        # Keras writes down what "auto" was resolved to, which another number of replicas may refuse
        config["jit_compile"] = self._jit_compile_as_given
        # whether the loss is scaled is decided; loaded under another dtype policy it would be decided anew
        scaled = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        if not scaled:
            config["auto_scale_loss"] = False
        if config.get("optimizer") is None or scaled:
            # stock `keras.saving.save_model` to HDF5 takes it out of the live model's configuration
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        return config
