"""Metrics whose state is no sum: exact in `GlobalBatchMetric`, and a warning without it."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from metrics.families import WEIGHTS, X
from mirrored_keras import DistributedModel, GlobalBatchMetric, SetupError
from model.regression import made_under
from whole_batch.training import assert_trains_as_one

Y = X.sum(axis=1, keepdims=True)


class LargestError(keras.metrics.Metric):
    """A running maximum."""

    def __init__(self, start=0.0, **kwargs):
        super().__init__(**kwargs)
        self.start = start
        self.largest = self.add_variable((), keras.initializers.Constant(start), name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.abs(y_true - y_pred)
        if sample_weight is not None:
            error *= ops.reshape(ops.cast(sample_weight, error.dtype), (-1, 1))
        self.largest.assign(ops.maximum(self.largest, ops.max(error)))

    def reset_state(self):
        self.largest.assign(self.start)

    def result(self):
        return self.largest


class Welford(keras.metrics.Metric):
    """Mean and deviation in one pass, for whoever knows no replicas."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count, self.mean, self.m2 = (self.add_variable((), "zeros", name=n) for n in ("count", "mean", "m2"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        n = ops.cast(ops.size(y_pred), self.dtype)
        mean, total = ops.mean(y_pred), self.count + n
        delta = mean - self.mean
        self.m2.assign_add(ops.sum(ops.square(y_pred - mean)) + delta**2 * self.count * n / total)
        self.mean.assign_add(delta * n / total)
        self.count.assign(total)

    def result(self):
        return {"mean": self.mean, "deviation": ops.sqrt(self.m2 / ops.maximum(self.count, 1.0))}


class LastRow(keras.metrics.Metric):
    """Depends on the order of the rows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.last = self.add_variable((), "zeros", name="last")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.last.assign(y_pred[-1, 0])

    def result(self):
        return self.last


class SquaredErrors(keras.metrics.Metric):
    """A sum over rows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.square(y_true - y_pred)))

    def result(self):
        return self.total


def largest_of_batch(y_true, y_pred):
    return ops.max(ops.abs(y_true - y_pred))


OWN = {
    "maximum": LargestError,
    "maximum from a start": lambda: LargestError(start=0.5),
    "maximum from minus infinity": lambda: LargestError(start=-np.inf),
    "welford": Welford,
    "order": LastRow,
    "mean of batches": lambda: keras.metrics.MeanMetricWrapper(largest_of_batch, name="largest"),
}


def compiled(base=DistributedModel, **metrics):
    def make():
        inputs = keras.Input((4,))
        model = base(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse", **{name: value() for name, value in metrics.items()})
        return model

    return make


def test_a_sum_whose_result_is_its_variable():
    assert_trains_as_one(compiled(metrics=lambda: [SquaredErrors(name="squares")]), [3], (X, Y), batch_size=4)


@pytest.mark.usefixtures("float64")
def test_on_the_global_batch():
    def wrapped(prefix, names):
        return [GlobalBatchMetric(OWN[name](), name=prefix + name.replace(" ", "_")) for name in names]

    make = compiled(
        metrics=lambda: [*wrapped("", OWN), "mae"],
        # Keras' mean of a number per batch takes no weights
        weighted_metrics=lambda: wrapped("weighted_", [name for name in OWN if name != "mean of batches"]),
    )
    assert_trains_as_one(make, [3], (X, Y), sample_weight=WEIGHTS, batch_size=4)


@pytest.mark.usefixtures("float64")
def test_metric_that_makes_its_variables_at_the_first_update():
    make = compiled(metrics=lambda: [GlobalBatchMetric(keras.metrics.R2Score(), name="r2")])
    assert_trains_as_one(make, [3], (X, Y), batch_size=4, epochs=1)


@pytest.mark.usefixtures("float64")
def test_eagerly_and_by_batches():
    def make():
        model = compiled(metrics=lambda: [GlobalBatchMetric(LargestError(start=0.1), name="largest")])()
        model.run_eagerly = True
        return model

    assert_trains_as_one(make, [3], (X[4:9], Y[4:9]), batch_size=4, epochs=1)
    one, many = made_under(None, make), made_under(3, make)
    for rows in (5, 2):
        logs = [model.train_on_batch(X[:rows], Y[:rows], return_dict=True) for model in (one, many)]
        a, b = ({name: float(value) for name, value in log.items()} for log in logs)
        assert a == pytest.approx(b, rel=1e-12)


def test_saved_and_loaded():
    metric = GlobalBatchMetric(keras.metrics.R2Score(name="r2"), name="all_rows")
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert isinstance(loaded, GlobalBatchMetric) and isinstance(loaded.metric, keras.metrics.R2Score)
    assert (loaded.name, loaded.metric.name) == ("all_rows", "r2")


@pytest.mark.parametrize("name", OWN)
def test_alone_it_warns(name):
    model = made_under(2, compiled(metrics=lambda: [OWN[name]()]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model.evaluate(X, Y, verbose=0)
        model.evaluate(X, Y, verbose=0)
    (warning,) = caught
    kind = type(OWN[name]()).__name__
    assert str(warning.message).startswith("The state of the metric `")
    assert f"({kind}) is not a sum over rows" in str(warning.message)
    made = "keras.metrics.MeanMetricWrapper(largest_of_batch)" if name == "mean of batches" else f"{kind}(...)"
    assert f"GlobalBatchMetric({made})" in str(warning.message)


def root_mean_square(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


def mean_error(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred))


def test_a_function_that_is_no_mean_over_rows_warns():
    alone, means = (made_under(2, compiled(metrics=lambda f=f: [f])) for f in (root_mean_square, mean_error))
    with pytest.warns(UserWarning, match=r"`root_mean_square` \(MeanMetricWrapper\) is not a sum over rows") as caught:
        alone.evaluate(X, Y, verbose=0)
    assert "GlobalBatchMetric(keras.metrics.MeanMetricWrapper(root_mean_square))" in str(caught[0].message)
    means.evaluate(X, Y, verbose=0)  # warnings are errors
    whole = made_under(
        2, compiled(metrics=lambda: [GlobalBatchMetric(keras.metrics.MeanMetricWrapper(root_mean_square))])
    )
    expected = float(np.sqrt(np.mean(np.square(Y - X.astype("float32") @ whole.get_weights()[0]))))
    assert whole.evaluate(X, Y, batch_size=len(X), verbose=0)[1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("replicas", [None, 1, 2])
def test_sums_do_not_warn(replicas):
    model = made_under(replicas, compiled(metrics=lambda: [SquaredErrors(), keras.metrics.RootMeanSquaredError()]))
    expected = float(np.sum(np.square(Y - X.astype("float32") @ model.get_weights()[0])))
    assert model.evaluate(X, Y, batch_size=5, verbose=0)[1] == pytest.approx(expected, rel=1e-5)


def test_a_declared_aggregation_does_not_warn():
    class OfOneReplica(LargestError):
        def __init__(self):
            super().__init__()
            self.first = self.add_variable((), "zeros", aggregation="only_first_replica", name="first")

    made_under(2, compiled(metrics=lambda: [OfOneReplica()])).evaluate(X, Y, verbose=0)  # warnings are errors


def test_no_metric():
    with pytest.raises(SetupError) as caught:
        GlobalBatchMetric("mae")
    assert str(caught.value) == (
        "`GlobalBatchMetric` takes a metric object.\nReceived: metric='mae'\n"
        "What to do: GlobalBatchMetric(keras.metrics.MeanAbsoluteError())"
    )
