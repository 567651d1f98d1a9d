"""What differs between workers is refused in seconds, files are written once, and nobody waits for ever."""

from workers import group


def test_checks_and_files(tmp_path):
    ended = group.run(2, "checks.py", tmp_path, timeout=600)
    for worker in ended:
        lines = {line["case"]: line for line in worker.lines}
        assert not [line for line in worker.lines if "failed" in line], worker.lines
        assert len(lines) == 14
        slow = {name: line["after"] for name, line in lines.items() if line.get("after", 0) > 30}
        assert not slow
