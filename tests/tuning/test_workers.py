"""Worker processes: started, watched and ended by the search, through KerasTuner's own protocol."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

import mirrored_keras
from mirrored_keras import SetupError, tuning
from mirrored_keras.tuning import worker, worker_group
from tuning.searches import Function, function_search

SCRIPT = pathlib.Path(__file__).with_name("worker_search.py")


def start(folder, kind):
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), kind],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def searched(folder, kind):
    """Returns the rows of a search, what it printed, and which process ran which trial."""
    process = start(folder, kind)
    printed, _ = process.communicate(timeout=900)  # on a busy machine, an import takes minutes
    rows = json.loads((folder / "rows.json").read_text()) if process.returncode == 0 else None
    marks = (
        [path.name.split("-") for path in sorted((folder / "marks").glob("*"))] if (folder / "marks").exists() else []
    )
    return rows, printed, marks


def declared():
    space = tuning.HyperParameters()
    space.Float("x", 0.0, 1.0, step=0.1)
    return space


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    """What all the searches below must find."""
    folder = tmp_path_factory.mktemp("one")
    oracle = tuning.oracles.RandomSearchOracle(max_trials=4, seed=3, hyperparameters=declared())
    tuner = function_search(lambda hp: hp.Float("x", 0.0, 1.0, step=0.1), folder, oracle=oracle)
    return {row["trial_id"]: row["score"] for row in tuner.results()}


def test_a_killed_worker_is_replaced_and_reasons_travel(in_one_process, tmp_path):
    rows, printed, marks = searched(tmp_path, "killed")
    assert rows, printed
    assert {**in_one_process, "2": None} == {
        row["trial_id"]: row["score"] and pytest.approx(row["score"]) for row in rows
    }
    assert [row["hp.x"] for row in rows] == list(in_one_process.values())  # exact, not in single precision
    assert {name for _, name, _ in marks} == {"worker0", "worker1"}
    assert [mark[0] for mark in marks].count("1") == 2
    assert "Trial 1 waits for another process" in printed and "SIGKILL" in printed
    devices = {json.loads(path.read_text())["devices"][0] for path in (tmp_path / "marks").glob("*")}
    assert devices == {0, 1}
    assert rows[2]["outcome"] == "failed"
    assert rows[2]["reason"].rstrip().endswith("ValueError: this reason travels")


def test_every_trial_in_a_process_of_its_own(in_one_process, tmp_path):
    rows, printed, marks = searched(tmp_path, "process_per_trial")
    assert rows, printed
    assert [row["score"] for row in rows] == pytest.approx(list(in_one_process.values())[:2])
    assert len({process for _, _, process in marks}) == 2


def test_workers_end_with_the_process_that_started_them(tmp_path):
    process = start(tmp_path, "chief_killed")
    until = time.monotonic() + 600  # on a busy machine, an import takes minutes
    while len(list((tmp_path / "marks").glob("*")) if (tmp_path / "marks").exists() else []) < 1:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    workers = [int(path.name.split("-")[2]) for path in (tmp_path / "marks").glob("*")]
    process.kill()
    process.communicate()
    killed = time.monotonic()
    while [pid for pid in workers if is_running(pid)]:
        assert time.monotonic() < killed + 30
        time.sleep(0.1)


def is_running(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


class Fake(worker_group.WorkerGroup):
    """Starts no process: asks for a trial as one would."""

    def _start(self, index):
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"worker{index}.log").write_text("the last words")
        self._requests[index] = self._oracle.requests[f"worker{index}"]
        self._oracle.create_trial(f"worker{index}")
        self._processes[index] = None


@pytest.fixture
def group(tmp_path):
    oracle = tuning.oracles.RandomSearchOracle(max_trials=2, seed=3, hyperparameters=declared())
    group = Fake(Function(oracle, None, directory=tmp_path), [None], one_trial_each=False)
    group._start(0)
    return group


def test_a_trial_that_ends_its_process_again_and_again_fails(group):
    oracle = group._oracle
    for _ in range(3):
        assert oracle.ongoing_trials["worker0"].trial_id == "0"
        group._after(0, -9)
    assert oracle.ongoing_trials["worker0"].trial_id == "1"
    assert oracle.trials["0"].status == "FAILED" and "the last words" in oracle.trials["0"].message
    assert "Its process was ended 3 times, the last time by signal SIGKILL" in oracle.trials["0"].message


def test_errors_of_a_worker_travel(group, monkeypatch):
    error = group._folder / "worker0.error.json"
    monkeypatch.setenv(worker.SETTINGS, json.dumps({"error": str(error)}))

    def search():
        raise tuning.errors.FatalValueError("this ends the search")

    with pytest.raises(SystemExit) as ended:
        worker.run(search)
    assert ended.value.code == 1
    with pytest.raises(tuning.TuningError, match=r"(?s)A worker process runs the same.*this ends the search"):
        group._after(0, 1)


@pytest.mark.parametrize(("code", "why"), [(1, "the last words"), (0, "it did not come to `search`")])
def test_a_worker_that_does_not_come_to_the_search(code, why, group):
    group._requests[0] = group._oracle.requests["worker0"]  # it asked for nothing
    with pytest.raises(tuning.TuningError, match=why):
        group._after(0, code)


@pytest.mark.parametrize("workers", [[], [[]], [[0], [0]], [[-1]], [["0"]], 2])
def test_groups_of_devices(workers):
    with pytest.raises(SetupError, match="`workers` is a list with the device numbers"):
        worker_group.check_groups(workers)


def test_programs_that_cannot_be_started_again(monkeypatch):
    for command in (["python"], ["python", "-"]):
        monkeypatch.setattr(sys, "orig_argv", command)
        with pytest.raises(SetupError, match="run the same script again"):
            worker_group.check_command()


def test_gpus_that_are_hidden_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(SetupError, match="physical ids of GPUs"):
        worker_group.visible_devices([0])
    assert worker_group.visible_devices([5]) == {"CUDA_VISIBLE_DEVICES": "5"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert worker_group.visible_devices([0]) == {}
