"""Runs scripts as the command line does."""

import sys
import textwrap

import jax
import pytest

from dtypeguard._cli.main import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line in this process, which is as before then."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    x64 = jax.config.jax_enable_x64

    def call(*arguments):
        code = main(["run", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield call
    jax.config.update("jax_enable_x64", x64)


@pytest.fixture
def script(tmp_path):
    """Writes a script."""

    def write(text, name="script.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write
