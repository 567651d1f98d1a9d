"""Print what TFRecord files hold: rows, features, and their schema as Python code ready to paste.

The schema comes from the index that write_tfrecords put beside the files, else from the first records. Raw bytes do
not say what they are: for them the types and shapes that fit their length are listed, the likeliest first.

Exits with 0, or with 1 if a file is damaged or, with --check, if a record cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrored_keras.data.record_files import RecordFile

SUMMARY = "print what TFRecord files hold, and their schema as code"

_CANDIDATES = 8
_REPORTED = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mirrored-keras inspect`.

    Args:
        parser: The parser of this subcommand.
    """
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, folders or patterns")
    parser.add_argument(
        "--check", action="store_true", help="read all records, compare the checksums, and name what cannot be used"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand.

    Args:
        arguments: What `add_arguments` parsed.

    Returns:
        The exit code.
    """
    from mirrored_keras.data import index, record_files
    from mirrored_keras.errors import DataError

    try:
        paths = record_files.find_files(arguments.files)
        files = [record_files.scan(path) for path in paths]
        _print_files(files)
        found = index.find_index(paths)
        if found:
            print(f"\n# from {found[0]}")
        schema = _print_schema(files, found[1] if found else None)
        bad = [*_bad_sums(files, found[1] if found else None), *_bad_records(paths, schema)] if arguments.check else []
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    for line in bad[:_REPORTED]:
        print(line)
    if arguments.check:
        print(f"\n{len(bad)} bad records and files")
    return 1 if bad or any(file.problem for file in files) else 0


def _print_files(files: list[RecordFile]) -> None:
    for file in files:
        problem = f"; record {file.rows}: {file.problem}" if file.problem else ""
        print(f"{file.path}: {file.rows:,} records{_compressed(file)}{problem}")
    rows, size = sum(file.rows for file in files), sum(file.record_bytes for file in files)
    print(f"{len(files)} files, {rows:,} records, {size / 1e6:,.1f} MB, {size / max(rows, 1):,.0f} bytes per record")


def _compressed(file):
    return f", {file.compression}" if file.compression else ""


def _print_schema(files, index):
    """Prints the schema, and returns it with raw bytes of unknown type as strings."""
    from mirrored_keras.data import features, inferring

    if index is not None:
        print(_with_import(features.as_code(index.schema)))
        return index.schema
    schema, checked, comments = {}, {}, {}
    for name, observed in inferring.observe(files).items():
        feature = inferring.feature_of(observed)
        checked[name] = feature or features.Feature("string")
        if feature is None:
            candidates = inferring.fitting(observed)
            lengths = observed.byte_lengths
            many = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
            comments[name] = [f"{many} raw bytes; these fit, choose one:"]
            comments[name] += [repr(candidate).replace("'", '"') for candidate in candidates[:_CANDIDATES]]
            feature = candidates[0]
        schema[name] = feature
    print("\n# from the first records")
    print(_with_import(features.as_code(schema, comments=comments)))
    return checked


def _with_import(code):
    return f"from mirrored_keras.data import Feature\n\n{code}"


def _bad_sums(files, index) -> list[str]:
    import os

    from mirrored_keras.data.writing import size_and_sha256

    sums = {shard.name: (shard.bytes, shard.sha256) for shard in index.shards} if index else {}
    return [
        f"{file.path}: not the file that was written, by its checksum"
        for file in files
        if sums.get(os.path.basename(file.path)) not in (None, size_and_sha256(file.path))
    ]


def _bad_records(paths, schema) -> list[str]:
    from mirrored_keras.data import check_tfrecords

    return [f"{bad.file} record {bad.record}: {bad.reason}" for bad in check_tfrecords(paths, schema)]
