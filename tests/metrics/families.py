"""Every metric class of Keras, with a problem that it fits: one model carries all metrics of a problem at once."""

import functools

import keras
import numpy as np
from keras import metrics

from mirrored_keras import DistributedModel
from model.regression import made_under
from whole_batch.training import BatchLogs

ROWS, BATCH = 13, 4  # on three replicas 2, 1 and 1 rows, in the last batch 1, 0 and 0
RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(ROWS, 4)) * np.linspace(0.3, 2.0, ROWS)[:, None]
LABELS = np.argmax(X[:, :3], axis=1)
WEIGHTS = np.where(np.arange(ROWS) % 5 == 2, 0.0, RANDOM.uniform(0.2, 3.0, size=ROWS))


def row_error(y_true, y_pred):
    return keras.ops.sum(keras.ops.abs(y_true - y_pred), axis=-1)


class Mean(metrics.Mean):
    """Of the predictions: Keras' own takes values, not targets and predictions."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred, sample_weight)


class Sum(metrics.Sum):
    """Of the predictions."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred, sample_weight)


def options(**classes):
    return classes


NUMBERS = options(
    Accuracy={},  # zeros of the relu are equal to zeros of the targets
    CosineSimilarity={},
    LogCoshError={},
    Mean={},
    MeanAbsoluteError={},
    MeanAbsolutePercentageError={},
    MeanMetricWrapper={"fn": row_error},
    MeanSquaredError={},
    MeanSquaredLogarithmicError={},
    Poisson={},
    R2Score={},
    RootMeanSquaredError={},
    Sum={},
)
BINARY = options(
    AUC={"num_thresholds": 20},
    BinaryAccuracy={},
    BinaryCrossentropy={},
    BinaryIoU={"target_class_ids": [0, 1], "dtype": "float32"},
    FalseNegatives={},
    FalsePositives={},
    Hinge={},
    Precision={},
    PrecisionAtRecall={"recall": 0.5},
    Recall={},
    RecallAtPrecision={"precision": 0.85},
    SensitivityAtSpecificity={"specificity": 0.4},
    SpecificityAtSensitivity={"sensitivity": 0.4},
    SquaredHinge={},
    TrueNegatives={},
    TruePositives={},
)
CLASSES = options(
    CategoricalAccuracy={},
    CategoricalCrossentropy={},
    CategoricalHinge={},
    ConcordanceCorrelation={},
    F1Score={"average": "macro"},
    FBetaScore={"average": "weighted", "beta": 2.0},
    KLDivergence={},
    OneHotIoU={"num_classes": 3, "target_class_ids": [0, 2], "dtype": "float32"},
    OneHotMeanIoU={"num_classes": 3, "dtype": "float32"},
    PearsonCorrelation={},
    TopKCategoricalAccuracy={"k": 2},
)
CLASS_NUMBERS = options(
    IoU={"num_classes": 3, "target_class_ids": [0, 2], "sparse_y_pred": False, "dtype": "float32"},
    MeanIoU={"num_classes": 3, "sparse_y_pred": False, "dtype": "float32"},
    SparseCategoricalAccuracy={},
    SparseCategoricalCrossentropy={},
    SparseTopKCategoricalAccuracy={"k": 2},
)

# metrics, head of the model, loss, targets
FAMILIES = {
    "numbers": (NUMBERS, (3, "relu"), "mse", np.maximum(np.round(X[:, :3], 1), 0)),
    "binary": (BINARY, (1, "sigmoid"), "binary_crossentropy", (X.sum(axis=1, keepdims=True) > 0).astype("float64")),
    "classes": (CLASSES, (3, "softmax"), "categorical_crossentropy", np.eye(3)[LABELS]),
    "class numbers": (CLASS_NUMBERS, (3, "softmax"), "sparse_categorical_crossentropy", LABELS),
}
OWN = {"Mean": Mean, "Sum": Sum}


def made(family):
    classes, (units, activation), loss, _ = FAMILIES[family]

    def objects(prefix):
        return [OWN.get(name, getattr(metrics, name))(name=prefix + name, **given) for name, given in classes.items()]

    inputs = keras.Input((4,))
    model = DistributedModel(inputs, keras.layers.Dense(units, activation=activation)(inputs))
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=objects(""), weighted_metrics=objects("weighted_"))
    return model


@functools.cache
def logs(family, replicas):
    """Returns the logs of epochs, of all batches and of the evaluation, each a dict of arrays."""
    model = made_under(replicas, lambda: made(family))
    seen = BatchLogs()
    y = FAMILIES[family][3]
    data = {"x": X, "y": y, "sample_weight": WEIGHTS}
    history = model.fit(**data, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[seen]).history
    evaluation = model.evaluate(**data, batch_size=5, verbose=0, return_dict=True, callbacks=[seen])
    batches = {name: np.array([batch[name] for batch in seen.seen]) for name in seen.seen[0]}
    return {"History": history, "batch logs": batches, "evaluate": evaluation}
