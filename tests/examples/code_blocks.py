"""Runs the Python blocks of one Markdown document, in order, in one namespace.

python tests/examples/code_blocks.py README.md
"""

import pathlib
import re
import sys

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run(path: pathlib.Path) -> int:
    """Runs the blocks of a document and returns their number; a traceback names the document and the line."""
    text = path.read_text(encoding="utf-8")
    namespace = {"__name__": path.stem}
    count = 0
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match.group(1), str(path), "exec"), namespace)
        count += 1
    return count


if __name__ == "__main__":
    print(run(pathlib.Path(sys.argv[1])), "blocks")
