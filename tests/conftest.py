"""One process, eight CPU devices, R = 1 ... 8 replicas; warnings are errors; no network."""

import socket

import pytest

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
