"""`multi_worker_strategy` reads the environment; here without starting any group."""

import json

import pytest
import tensorflow as tf

from mirrored_keras.errors import SetupError
from mirrored_keras.workers import is_chief, multi_worker_strategy
from mirrored_keras.workers import strategy as of_environment


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


def config(task=("worker", 0), **jobs):
    return json.dumps({"cluster": jobs, "task": {"type": task[0], "index": task[1]}})


@pytest.mark.parametrize("text", [None, "{}", config(worker=["a:1"]), config(chief=["a:1"], task=("chief", 0))])
def test_one_worker_is_no_group(monkeypatch, text):
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    strategy = multi_worker_strategy(1)
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 1
    assert is_chief(strategy)


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', config(worker=["a:1", "b:1"], task=("worker", 2)),
                                  config(worker=["a:1", "b:1"], task=("evaluator", 0))])  # fmt: skip
def test_unusable_text(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(SetupError, match="`TF_CONFIG` lists the workers"):
        multi_worker_strategy()


def test_parameter_servers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config(worker=["a:1", "b:1"], ps=["c:1"], chief=["d:1"], task=("chief", 0)))
    with pytest.raises(SetupError, match="asynchronously"):
        multi_worker_strategy()


@pytest.mark.parametrize("seconds", [0, -1, True, "600"])
def test_timeout(seconds):
    with pytest.raises(SetupError, match="positive number"):
        multi_worker_strategy(timeout_seconds=seconds)


def test_too_late(monkeypatch):
    """TensorFlow has started in this process."""
    tf.constant(1.0)
    monkeypatch.setenv("TF_CONFIG", config(worker=["127.0.0.1:1", "127.0.0.1:2"]))
    with pytest.raises(SetupError, match="before TensorFlow's first operation"):
        multi_worker_strategy()


def test_slurm(monkeypatch):
    """Tasks of a step on one host, as Slurm describes them."""
    variables = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "node1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(of_environment.shutil, "which", lambda name: None)
    resolver = of_environment._resolver()
    assert resolver.cluster_spec().as_dict() == {"worker": ["node1:8888", "node1:8889"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    monkeypatch.setenv("TF_CONFIG", config(worker=["a:1"]))
    assert of_environment._resolver() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    ],
    ids=["central storage"],
)
def test_refused_strategies(make):
    import keras

    from mirrored_keras import DistributedModel

    with make().scope():
        inputs = keras.Input((2,))
        model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        with pytest.raises(SetupError, match="CentralStorageStrategy: metrics"):
            model.compile("sgd", "mse")


def test_one_device_strategy_is_one_replica():
    from invariance.case import train
    from invariance.cases import ALL_CASES
    from invariance.compare import assert_same
    from mirrored_keras import DistributedModel

    case = {case.name: case for case in ALL_CASES}["Adam global_clipnorm"]
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    assert_same(case, train(case, DistributedModel), train(case, DistributedModel, strategy))
