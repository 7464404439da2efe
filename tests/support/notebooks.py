"""Runs the notebooks of `docs/`, each in a kernel of its own and an empty folder.

A cell has to give the text that is stored under it, as `pages.matches` compares. Only text
is stored: how reports look in a notebook is tested in `tests/hooks/test_notebook.py`.
"""

import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.support.helpers import child_variables
from tests.support.pages import DOCS, Difference, matches

NOTEBOOKS = sorted(DOCS.glob("*.ipynb"))

_COLORS = re.compile(r"\x1b\[[\d;]*m")
# Of what IPython prints around an error: the lines of the frames.
_FRAMES = re.compile(
    r"\A-{20,}\n.*?(?=^\w+(Error|Warning): )", flags=re.DOTALL | re.MULTILINE
)


def executed(notebook: Any) -> Any:
    """The notebook, run in this folder by a kernel with no settings of the user's."""
    import nbclient

    scripts = os.path.dirname(sys.executable)  # for `!dtypeguard ...`
    variables = child_variables() | {"COLUMNS": "120"}
    variables["PATH"] = os.pathsep.join([scripts, variables["PATH"]])
    client = nbclient.NotebookClient(notebook, timeout=600, allow_errors=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        variables |= {"HOME": home, "IPYTHONDIR": home}
        with mock.patch.dict(os.environ, variables):
            return client.execute()


def run(notebook: pathlib.Path) -> Any:
    """The notebook with what its cells give."""
    import nbformat

    found = executed(nbformat.read(notebook, as_version=4))
    for cell in found.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            text = text_of(cell)
            cell.outputs = [_stream(text)] if text else []
    return found


def follow_notebook(notebook: pathlib.Path) -> Iterator[Difference]:
    """Runs a notebook in the working directory, and yields what differs from it."""
    import nbformat

    stored, now = nbformat.read(notebook, as_version=4), run(notebook)
    for cell, again in zip(stored.cells, now.cells):
        if cell.cell_type == "code" and not matches(text_of(cell), text_of(again)):
            yield Difference(
                f"{notebook.stem}-{cell.id}", text_of(cell), text_of(again), (0, 0)
            )


def rewritten_notebook(notebook: pathlib.Path) -> str:
    """The notebook as a file, with what its cells give."""
    import nbformat

    return nbformat.writes(run(notebook), indent=1) + "\n"


def text_of(cell: Any) -> str:
    """What a cell gives, as text: printed, as its value, and an error by its message."""
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type == "error":
            texts.append(
                _FRAMES.sub("", _COLORS.sub("", "\n".join(output.traceback))) + "\n"
            )
        elif output.data.get("text/plain"):
            texts.append(output.data["text/plain"] + "\n")
    return "".join(texts)


def _stream(text: str) -> Any:
    import nbformat

    return nbformat.v4.new_output("stream", name="stdout", text=text)
