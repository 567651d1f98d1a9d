"""Models of the invariance suite, each a function from a base class to a model.

The base class is `keras.Model` or `DistributedModel`; all else is equal. Widths are odd numbers and
differ, so that a transposed or mixed-up axis cannot go unnoticed. No two rows are treated alike.
"""

import keras
from keras import layers, ops

WIDTH = 4  # features of a row
CLASSES = 3
LENGTH = 5  # tokens of a row
WORDS = 11  # ids 1 ... 10 are words, 0 is padding


def dense(base, last=None, **options):
    """Two dense layers, functional; `options` go to the first."""
    inputs = keras.Input((WIDTH,))
    hidden = layers.Dense(5, activation="tanh", name="hidden", **options)(inputs)
    return base(inputs, (last or layers.Dense(CLASSES, name="out"))(hidden))


def probability(base):
    """One number between 0 and 1."""
    return dense(base, last=layers.Dense(1, activation="sigmoid"))


def frozen(base):
    """The first layer is not trained."""
    return dense(base, trainable=False)


def constrained(base):
    """The norm of each kernel column is limited after the update."""
    return dense(base, kernel_constraint=keras.constraints.MaxNorm(0.7))


def kernel_penalty(base):
    return dense(base, kernel_regularizer=keras.regularizers.L2(0.05))


def activity_penalty(base):
    return dense(base, activity_regularizer=keras.regularizers.L2(0.1))


def convolution(base):
    """An image of 4 x 3 pixels."""
    inputs = keras.Input((4, 3, 1))
    maps = layers.Conv2D(3, (2, 2), activation="tanh")(inputs)
    return base(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(maps)))


def sequential(base):
    """A `Sequential` model; `DistributedModel` takes it over by `from_model`."""
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(5, activation="tanh"), layers.Dense(CLASSES)])
    return model if base is keras.Model else base.from_model(model)


def nested(base):
    """A plain Keras model with a penalty inside the trained one."""
    inner_inputs = keras.Input((WIDTH,))
    inner_layer = layers.Dense(5, activation="tanh", kernel_regularizer=keras.regularizers.L1L2(l1=0.02))
    inner = keras.Model(inner_inputs, inner_layer(inner_inputs), name="inner")
    inputs = keras.Input((WIDTH,))
    return base(inputs, layers.Dense(CLASSES)(inner(inputs)))


def added_mean(base):
    """A layer adds the mean of its outputs' size to the loss."""

    class Mean(layers.Layer):
        def call(self, inputs):
            self.add_loss(0.3 * ops.mean(ops.square(inputs)))
            return inputs

    inputs = keras.Input((WIDTH,))
    hidden = Mean()(layers.Dense(5, activation="tanh")(inputs))
    return base(inputs, layers.Dense(CLASSES)(hidden))


def subclassed(base):
    """Own `call`; built by its first batch."""

    class Net(base):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(5, activation="tanh")
            self.out = layers.Dense(CLASSES)

        def call(self, inputs):
            return self.out(self.hidden(inputs))

    return Net()


def unused_variable(base):
    """A trainable variable that has no gradient."""

    class Net(base):
        def __init__(self):
            super().__init__()
            self.out = layers.Dense(CLASSES)
            self.spare = self.add_weight(shape=(2,), name="spare")

        def call(self, inputs):
            return self.out(inputs)

    return Net()


def only_added_loss(base):
    """No targets: the loss is the mean error of reconstruction, added in `call`."""

    class Net(base):
        def __init__(self):
            super().__init__()
            self.code = layers.Dense(3, activation="tanh")
            self.out = layers.Dense(WIDTH)

        def call(self, inputs):
            outputs = self.out(self.code(inputs))
            self.add_loss(ops.mean(ops.square(outputs - inputs)))
            return outputs

    return Net()


def _functional_subclass(base, net):
    inputs = keras.Input((WIDTH,))
    hidden = layers.Dense(5, activation="tanh", name="hidden")(inputs)
    return net(inputs, layers.Dense(CLASSES, name="out")(hidden))


def own_loss_mean(base):
    """`compute_loss` is a plain mean over the rows at hand."""

    class Net(base):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.square(y - y_pred))

    return _functional_subclass(base, Net)


def own_loss_penalty(base):
    """`compute_loss` adds a mean over the rows at hand to what Keras computes."""

    class Net(base):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
            return loss + 0.3 * ops.mean(ops.abs(y_pred))

    return _functional_subclass(base, Net)


def two_heads(base, container=dict):
    """Outputs `a` (3 columns) and `b` (one column), as a dict or a list."""
    inputs = keras.Input((WIDTH,))
    hidden = layers.Dense(5, activation="tanh")(inputs)
    a = layers.Dense(CLASSES, name="a")(hidden)
    b = layers.Dense(1, name="b")(hidden)
    return base(inputs, {"a": a, "b": b} if container is dict else [a, b])


def two_heads_list(base):
    return two_heads(base, list)


def tagger(base, masked=True):
    """One prediction per token; padding is masked."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    words = layers.Embedding(WORDS, 4, mask_zero=masked)(inputs)
    return base(inputs, layers.Dense(CLASSES)(layers.Dense(5, activation="tanh")(words)))


def tagger_without_mask(base):
    return tagger(base, masked=False)


def recurrent(base):
    """A masked sequence, one prediction per row."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    words = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    return base(inputs, layers.Dense(CLASSES)(layers.SimpleRNN(5)(words)))


def bag_of_words(base):
    """The mean of word vectors: the gradient of the table is sparse, with repeated ids."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    words = layers.Embedding(WORDS, 4)(inputs)
    return base(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(words)))
