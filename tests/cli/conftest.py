"""Runs scripts as the command line does, in folders that leave nothing behind."""

import io
import sys
import textwrap

import jax
import pytest

from dtypeguard._cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in; its modules, paths and flags are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, x64 = {*sys.modules}, jax.config.jax_enable_x64
    yield tmp_path
    jax.config.update("jax_enable_x64", x64)
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(monkeypatch, capsys, folder):
    """Runs the command line in this process, which is as before then."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)

    def call(*arguments):
        code = main(["run", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def script(tmp_path):
    """Writes a script."""

    def write(text, name="script.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A stream that is a terminal with colors."""
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return _Terminal()
