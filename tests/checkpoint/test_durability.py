"""Killed, damaged, full disks: the file left is the old one or the new one, whole, and no damage goes unseen."""

import errno
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest

from checkpoint.saved_models import FORMATS, X, five_steps, make_model, same_state
from mirrored_keras import CheckpointError, DistributedModel, load_model, load_weights, save_model, save_weights
from mirrored_keras.checkpoint.inspection import check_file

KILLS = 200
MUTATIONS = 2000


def write(model, path):
    save_weights(model, path) if path.name.endswith(".weights.h5") else save_model(model, path)


def weights_in(path):
    if path.name.endswith(".weights.h5"):
        model = make_model(None)
        load_weights(model, path)
    else:
        model = load_model(path, compile=False)
    return model.get_weights()


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return tmp_path / request.param


def filled(model, number):
    """A model whose weights all say which save they belong to."""
    for variable in model.weights:
        variable.assign(np.full(variable.shape, number, variable.dtype))
    return model


def in_a_fork(work):
    """Runs work in a copy of this process, which only reads variables and writes files; returns its process."""
    process = os.fork()
    if process:
        return process
    try:
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(getattr(error, "errno", None) or 255)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_killed_at_any_moment_while_it_saves(path):
    model = make_model(None)
    write(model, path)
    started = time.perf_counter()
    write(model, path)
    one_save = time.perf_counter() - started
    generator, files, in_the_middle = random.Random(7), set(), 0
    for kill in range(KILLS):

        def save_in_a_loop(first=1000 * kill):
            for number in range(first, first + 1000):
                write(filled(model, number), path)

        process = in_a_fork(save_in_a_loop)
        time.sleep(generator.uniform(0, 6 * one_save))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        check_file(str(path))  # whole: the checksum of all bytes
        files.add(path.read_bytes()[-64:])
        in_the_middle += len(list(path.parent.iterdir())) > 1
    assert len(files) > 10  # sometimes the old one, often a new one
    assert in_the_middle > 10
    assert len({float(value) for array in weights_in(path) for value in np.ravel(array)}) == 1
    write(model, path)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing of the killed is left


def test_readers_always_see_a_whole_file(path):
    model = make_model(None)
    write(model, path)
    stop, checked, errors = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                check_file(str(path))
                checked.append(1)
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(40):
        write(model, path)
    stop.set()
    reader.join()
    assert not errors
    assert len(checked) > 5


def mutated(data, generator):
    """A copy with a few bytes or blocks changed, cut, repeated or zeroed."""
    data = bytearray(data)
    kind = generator.choice(("byte", "bytes", "bit", "zeros", "cut", "drop", "repeat", "noise"))
    start = generator.randrange(len(data))
    length = generator.randrange(1, 1 << generator.randrange(1, 13))
    if kind == "byte":
        data[start] = (data[start] + generator.randrange(1, 256)) % 256
    elif kind == "bit":
        data[start] ^= 1 << generator.randrange(8)
    elif kind == "bytes":
        for _ in range(generator.randrange(2, 40)):
            data[generator.randrange(len(data))] = generator.randrange(256)
    elif kind == "zeros":
        data[start : start + length] = bytes(len(data[start : start + length]))
    elif kind == "cut":
        del data[start:]
    elif kind == "drop":
        del data[start : start + length]
    elif kind == "repeat":
        data[start:start] = data[start : start + length]
    else:
        data[start : start + length] = generator.randbytes(len(data[start : start + length]))
    return bytes(data)


def test_damage_never_gives_a_wrong_number(path):
    model = make_model(None)
    five_steps(model)
    write(model, path)
    data, expected, generator = path.read_bytes(), model.get_weights(), random.Random(11)
    refused = 0
    for index in range(MUTATIONS):
        changed = mutated(data, generator)
        path.write_bytes(changed)
        try:
            check_file(str(path))
        except CheckpointError as error:
            assert "What to do" in str(error)
            refused += 1
            continue
        assert same_state(weights_in(path), expected), f"mutation {index}"
    assert refused > 0.9 * MUTATIONS  # the others changed nothing: zeros to zeros, and the like


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_files_may_not_grow_any_further(path):
    model = make_model(None)
    write(model, path)
    before = path.read_bytes()

    def save_little():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        write(model, path)

    _, status = os.waitpid(in_a_fork(save_little), 0)
    assert os.waitstatus_to_exitcode(status) == errno.EFBIG
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


FULL_DISK = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[2])
import devices
import keras
from mirrored_keras import load_model, load_weights, save_model, save_weights
folder = sys.argv[1]
def make(number):
    model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(500)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.layers[0].kernel.assign(np.full((500, 500), number))
    return model
def write(model, path):
    (save_weights if path.endswith(".weights.h5") else save_model)(model, path)
for name in ("a.keras", "a.h5", "a.weights.h5"):
    path = os.path.join(folder, name)
    write(make(1.0), path)
    try:
        with open(os.path.join(folder, "ballast"), "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass
    try:
        write(make(2.0), path)
        print("no error", name)
    except OSError as error:
        assert error.errno == 28, error
    os.remove(os.path.join(folder, "ballast"))
    model = make(3.0)
    load_weights(model, path)
    print(name, float(model.layers[0].kernel[0, 0]), sorted(os.listdir(folder)))
    os.remove(path)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs `unshare`, to mount a small file system")
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path):
    script = tmp_path / "full_disk.py"
    script.write_text(FULL_DISK)
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=8m small {folder}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system of his own")
    tests = pathlib.Path(__file__).parents[1]
    run = f"{mount} && {sys.executable} {script} {folder} {tests}"
    result = subprocess.run(["unshare", "-rm", "sh", "-c", run], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines() == [f"{name} 1.0 ['{name}']" for name in ("a.keras", "a.h5", "a.weights.h5")]


PLAIN_KERAS = """
import sys
sys.modules["mirrored_keras"] = None  # an import of it fails
import keras
import numpy as np
folder, x = sys.argv[1], np.load(sys.argv[1] + "/x.npy")
models = {
    "plain.keras": keras.saving.load_model(folder + "/plain.keras"),
    "plain.h5": keras.saving.load_model(folder + "/plain.h5", compile=False),
    "own.keras": keras.saving.load_model(
        folder + "/own.keras", custom_objects={"mirrored_keras>DistributedModel": keras.Model}
    ),
    "own.h5": keras.saving.load_model(
        folder + "/own.h5", custom_objects={"DistributedModel": keras.Model}, compile=False
    ),
    "own.weights.h5": keras.saving.load_model(folder + "/plain.keras"),
}
models["own.weights.h5"].set_weights([0 * w for w in models["own.weights.h5"].get_weights()])
models["own.weights.h5"].load_weights(folder + "/own.weights.h5")
for name, model in models.items():
    steps = int(model.optimizer.iterations) if model.compiled else None
    assert type(model).__module__.startswith("keras."), type(model)
    assert np.array_equal(model.predict(x, verbose=0), np.load(folder + "/y.npy")), name
    print(name, steps)
"""


def test_plain_keras_opens_the_files_without_this_package(tmp_path):
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.2, seed=1)(inputs)))
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    five_steps(model)
    for name in ("keras", "h5"):
        save_model(model, tmp_path / f"own.{name}")
        save_model(model, tmp_path / f"plain.{name}", plain=True)
    save_weights(model, tmp_path / "own.weights.h5")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", model.predict(X, verbose=0))
    script = tmp_path / "plain.py"
    script.write_text(PLAIN_KERAS)
    result = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines() == [
        "plain.keras 5",
        "plain.h5 None",
        "own.keras 5",
        "own.h5 None",
        "own.weights.h5 5",
    ]
