"""One process, eight CPU devices, R = 1 ... 8 replicas; warnings are errors; no network."""

import collections
import socket
import zlib

import pytest

from amount import EVERYTHING
from devices import make_cpu_devices, strategy_for

make_cpu_devices(8)

import keras

# Warnings of other packages that no change of ours can avoid; every other warning fails a test.
FOREIGN_WARNINGS = (
    "ignore::DeprecationWarning:(tensorflow|keras|google|flatbuffers|astunparse).*",
    "ignore:.*jax.*:UserWarning",
    # AutoGraph on Python 3.13; `pytest.warns` warns again of what it does not match, without the module's name
    "ignore:.* got an unexpected keyword argument '___pyct_anno':DeprecationWarning",
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning",  # Keras 3.12 with NumPy 2
)


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    for line in FOREIGN_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
    config.addinivalue_line("markers", "table(every): a large table of variants; one in so many runs by default")


def pytest_collection_modifyitems(config, items):
    """Leaves out most variants of large tables: all of them take two cores longer than a change can wait for.

    MIRRORED_KERAS_TESTS=all runs every variant, and so does naming one: pytest "tests/x.py::test_y[variant]".
    """
    if EVERYTHING or any("[" in argument for argument in config.args):
        return
    tables = collections.defaultdict(list)
    for item in items:
        if (table := item.get_closest_marker("table")) and hasattr(item, "callspec"):
            tables[item.function, table.kwargs["every"]].append(item)
    left_out = set()
    for (_, every), variants in tables.items():
        # the same ones every time, of all dimensions of the table
        variants.sort(key=lambda item: zlib.crc32(item.name.encode()))
        left_out.update(variants[-(-len(variants) // every) :])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def make_strategy():
    """A function from a number of replicas to a strategy that lives as long as the process."""
    return strategy_for


@pytest.fixture(autouse=True)
def seed():
    """Starts every test from the same seed of Python, NumPy, TensorFlow and Keras."""
    keras.utils.set_random_seed(20)
    return 20


@pytest.fixture
def float64():
    """Computes in double precision: layers, losses, metrics and optimizers."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Fails a test that opens a connection to another machine."""
    connect = socket.socket.connect

    def guarded(self, address):
        local = not isinstance(address, tuple) or address[0] in ("localhost", "127.0.0.1", "::1")
        if not local:
            raise OSError(f"tests use no network. Received: address={address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
