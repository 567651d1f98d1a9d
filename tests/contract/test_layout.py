"""The rooms of the package and the direction of the arrows between them."""

import sys

import pytest

from contract.source import ROOT, imports, modules, room

CORE_LIBRARIES = {"tensorflow", "keras", "numpy"}
FEATURES = ("layers", "data", "checkpoint", "callbacks", "tuning")
LONGEST_FILE = 350
#: Modules that users import by their full name: public, though not at the top level.
PUBLIC_MODULES = {"mirrored_keras.schedules"}


def own_imports(name):
    return [target for target in imports(name) if target.split(".")[0] == "mirrored_keras"]


COMMAND_LINE = ("cli", "__main__")


def in_rooms(*rooms):
    return [name for name in modules() if room(name) in rooms]


def foreign_libraries(name):
    roots = {target.split(".")[0] for target in imports(name)}
    return roots - set(sys.stdlib_module_names) - {"mirrored_keras"}


def test_step_imports_only_tensorflow():
    for name in in_rooms("step"):
        assert foreign_libraries(name) <= {"tensorflow"}, name
        assert {room(target) for target in own_imports(name)} <= {"step"}, name


def test_replica_imports_no_step():
    for name in in_rooms("replica"):
        # the graphs of datasets are protocol buffers
        allowed = CORE_LIBRARIES | ({"google"} if name.endswith(".dataset_order") else set())
        assert foreign_libraries(name) <= allowed, name
        assert {room(target) for target in own_imports(name)} <= {"replica", "errors"}, name


def test_core_imports_no_feature():
    """What `model` stands on needs no feature, so a feature cannot break the promise."""
    others = ("", "parity", *FEATURES, *COMMAND_LINE)
    core = [name for name in modules() if name.count(".") == 1 and room(name) not in others]
    for name in core:
        targets = {room(target) for target in own_imports(name)}
        assert not targets & {*FEATURES, "parity", "cli"}, name


@pytest.mark.parametrize("feature", FEATURES)
def test_features_use_only_the_public_package(feature):
    # what is saved is in private attributes of Keras, and all private names are in the rim
    rim = {"replica"} if feature == "checkpoint" else set()
    # every file that is written appears whole or not at all
    shared = {"mirrored_keras.checkpoint.atomic"} if feature in ("data", "tuning", "callbacks") else set()
    for name in in_rooms(feature):
        targets = {room(target) for target in own_imports(name) if target not in shared | PUBLIC_MODULES}
        assert targets <= {"", feature, "errors", *rim}, name


def test_workers_stand_on_the_rim():
    for name in in_rooms("workers"):
        assert foreign_libraries(name) <= CORE_LIBRARIES, name
        assert {room(target) for target in own_imports(name)} <= {"workers", "replica", "errors"}, name


def test_ray_uses_the_public_package():
    for name in in_rooms("ray"):
        assert {room(target) for target in own_imports(name)} <= {"", "ray", "workers", "errors"}, name


def test_launcher_starts_no_tensorflow():
    for name in ("mirrored_keras.cli.launch", "mirrored_keras.cli.worker_group"):
        assert not foreign_libraries(name), name


def test_reference_imports_nothing_of_ours():
    targets = list(imports("mirrored_keras.parity.reference"))
    assert {target.split(".")[0] for target in targets if target not in sys.stdlib_module_names} <= (
        CORE_LIBRARIES | {"collections"}
    )
    assert not own_imports("mirrored_keras.parity")


def test_nothing_of_the_package_imports_the_command_line():
    for name in modules():
        if room(name) not in COMMAND_LINE:
            assert "cli" not in {room(target) for target in own_imports(name)}, name


def test_files_are_short_and_have_a_subject():
    for path in ROOT.rglob("*.py"):
        assert path.stem not in ("utils", "util", "helpers", "common", "misc"), path
        # all private names are to be in one file, however many there are
        longest = 2 * LONGEST_FILE if path.stem == "private" else LONGEST_FILE
        assert len(path.read_text(encoding="utf-8").splitlines()) <= longest, path
