"""What the user reads when something was made outside the scope: the full text."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel, SetupError

X, Y = np.ones((6, 5), "float32"), np.ones((6, 1), "float32")

RIGHT_ORDER = """with strategy.scope():
    model = DistributedModel(inputs, outputs)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=..., metrics=[...])
model.fit(...)"""


def linear(cls=DistributedModel, layer=None):
    inputs = keras.Input((5,))
    return cls(inputs, (layer or keras.layers.Dense(1, name="head"))(inputs), name="linear")


def text_of(error, function):
    with pytest.raises(error) as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("method", ["compile", "fit", "predict"])
def test_model_made_outside(make_strategy, method):
    model = linear()
    model.compile("sgd", "mse")
    calls = {
        "compile": lambda: model.compile("sgd", "mse"),
        "fit": lambda: model.fit(X, Y, verbose=0),
        "predict": lambda: model.predict(X, verbose=0),
    }
    with make_strategy(2).scope():
        text = text_of(SetupError, calls[method])
    assert text == (
        "A model must be made inside the scope of the strategy that runs it: its weights are one copy per replica "
        "from the start.\n"
        "Received: model='linear' made under no strategy, run under MirroredStrategy over 2 replicas\n"
        f"What to do: {RIGHT_ORDER}"
    )


def test_strategies_mixed(make_strategy):
    with make_strategy(2).scope():
        model = linear()
        model.compile("sgd", "mse")
    with make_strategy(3).scope():
        text = text_of(SetupError, lambda: model.fit(X, Y, verbose=0))
    assert "made under MirroredStrategy over 2 replicas, run under MirroredStrategy over 3 replicas" in text


def test_optimizer_made_outside(make_strategy):
    with make_strategy(2).scope():
        model = linear()
    text = text_of(SetupError, lambda: model.compile(keras.optimizers.Adam(), "mse"))
    assert text == (
        "An optimizer must be made inside the scope of the strategy that its model was made in.\n"
        "Received: optimizer=Adam made under no strategy, model made under MirroredStrategy over 2 replicas\n"
        f"What to do: {RIGHT_ORDER}"
    )


def test_optimizer_inside_a_wrapper_made_outside(make_strategy):
    inner = keras.optimizers.Adam()
    with make_strategy(2).scope():
        model = linear()
        wrapper = keras.optimizers.LossScaleOptimizer(inner)
    assert "optimizer=Adam made under no strategy" in text_of(SetupError, lambda: model.compile(wrapper, "mse"))


def test_metric_made_outside(make_strategy):
    with make_strategy(2).scope():
        model = linear()
    metric = keras.metrics.MeanAbsoluteError(name="mae")
    text = text_of(SetupError, lambda: model.compile("sgd", "mse", metrics={"head": [metric]}))
    assert text == (
        "Every layer and metric must be made inside the scope of the strategy, pre-trained ones too.\n"
        "Received: variable='mae/total' of metric 'mae', made outside the scope of MirroredStrategy over 2 replicas\n"
        f"What to do: {RIGHT_ORDER}"
    )


def test_layer_made_outside(make_strategy):
    pretrained = keras.layers.Dense(1, name="pretrained")
    pretrained.build((None, 5))
    with make_strategy(2).scope():
        model = linear(layer=pretrained)
        text = text_of(SetupError, lambda: model.compile("sgd", "mse"))
    assert text == (
        "Every layer and metric must be made inside the scope of the strategy, pre-trained ones too.\n"
        "Received: variable='pretrained/kernel' of model 'linear', made outside the scope of MirroredStrategy over 2 "
        "replicas\n"
        "What to do: with strategy.scope():\n"
        "    base = keras.models.clone_model(pretrained)      # or make it here in the first place\n"
        "    model = DistributedModel.from_model(base)\n"
        "base.set_weights(pretrained.get_weights())"
    )


def test_the_advice_for_pretrained_layers_works(make_strategy):
    pretrained = linear(keras.Model)
    with make_strategy(2).scope():
        base = keras.models.clone_model(pretrained)
        model = DistributedModel.from_model(base)
        model.compile("sgd", "mse")
    base.set_weights(pretrained.get_weights())
    np.testing.assert_array_equal(model.predict(X, verbose=0), pretrained.predict(X, verbose=0))


def test_from_model_made_outside(make_strategy):
    plain = linear(keras.Model)
    with make_strategy(2).scope():
        text = text_of(SetupError, lambda: DistributedModel.from_model(plain))
    assert "variable='head/kernel' of model 'linear'" in text


def test_fit_inside_a_replica(make_strategy):
    with make_strategy(2).scope():
        model = linear()
        model.compile("sgd", "mse")
    text = text_of(SetupError, lambda: make_strategy(2).run(lambda: model.fit(X, Y, verbose=0)))
    assert text == (
        "A model is compiled and run from outside its replicas; inside one it would start a run per replica.\n"
        "Received: called inside strategy.run(...)\n"
        "What to do: model.fit(...) outside strategy.run, or model.train_step(data) inside"
    )


def test_names_given_to_compile_outside_the_scope_work(make_strategy):
    with make_strategy(2).scope():
        model = linear()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    assert all(len(v.value.values) == 2 for v in model.optimizer.variables if v.shape)


def test_layer_made_trainable_after_compile(make_strategy):
    with make_strategy(2).scope():
        frozen = keras.layers.Dense(2, name="frozen")
        frozen.trainable = False
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, keras.layers.Dense(1)(frozen(inputs)))
        model.compile("adam", "mse")
    frozen.trainable = True
    text = text_of(SetupError, lambda: model.fit(X, Y, verbose=0))
    assert text.splitlines()[:2] == [
        "`compile` fixes which weights an optimizer trains; a layer was made trainable, or attached, after it.",
        f"Received: variable='frozen/kernel', optimizer={model.optimizer.name!r}",
    ]


def test_jit_compile(make_strategy):
    with make_strategy(2).scope():
        model = linear()
        text = text_of(SetupError, lambda: model.compile("sgd", "mse", jit_compile=True))
    assert text == (
        "XLA compiles for one device; a step of several replicas touches the variables of all of them.\n"
        "Received: jit_compile=True, replicas=2\n"
        'What to do: model.compile(..., jit_compile="auto")'
    )


def test_collective_that_leaves_out_a_replica():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1", "CPU:2"], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    )
    with strategy.scope():
        model = linear()
        model.compile("sgd", "mse")
    text = text_of(RuntimeError, lambda: model.fit(X, Y, verbose=0))
    assert text.startswith(
        "The strategy's all-reduce must sum over every replica; it does not, so training would leave out part of "
        "every batch.\nReceived: sums=[3.0, "
    )
    assert text.endswith("cross_device_ops=tf.distribute.ReductionToOneDevice())")
    assert int(model.optimizer.iterations.numpy()) == 0


def test_from_model_of_something_else():
    assert text_of(SetupError, lambda: DistributedModel.from_model(3)) == (
        "`from_model` takes a `keras.Model`.\n"
        "Received: model=3 (of type int)\n"
        "What to do: DistributedModel.from_model(keras.Sequential([...]))"
    )


def test_from_model_with_an_own_step():
    class Trained(keras.Model):
        def train_step(self, data):
            return {}

    assert text_of(SetupError, lambda: DistributedModel.from_model(Trained())) == (
        "`from_model` keeps a model's layers, not its own steps, which would silently be lost.\n"
        "Received: model=Trained, which overrides train_step\n"
        "What to do: class Trained(mirrored_keras.DistributedModel): ..."
    )
