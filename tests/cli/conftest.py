"""Runs command lines in this process, in folders that leave nothing behind."""

import sys
import textwrap

import jax
import pytest

from dtypeguard._cli.main import main
from tests.support.helpers import Terminal


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    """A folder to work in; its modules, paths and flags are forgotten.

    It has the `SCRIPT` of the test's module, as `mine.py`.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(getattr(request.module, "SCRIPT", ""))
    before, x64 = {*sys.modules}, jax.config.jax_enable_x64
    yield tmp_path
    jax.config.update("jax_enable_x64", x64)
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def command(folder, capsys):
    """Runs a command line, in which `:name` is of `mine.py`: status, output, errors."""

    def call(words, *more):
        words = [f"mine.py{x}" if x.startswith(":") else x for x in words.split()]
        capsys.readouterr()
        return main([*words, *map(str, more)]), *capsys.readouterr()

    return call


@pytest.fixture
def run(monkeypatch, capsys, folder):
    """Runs `dtypeguard run` in this process, which is as before then."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    return lambda *words: (main(["run", *map(str, words)]), *capsys.readouterr())


@pytest.fixture
def script(folder):
    """Writes a script."""

    def write(text, name="script.py"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write


@pytest.fixture
def terminal(monkeypatch):
    """A stream that is a terminal with colors."""
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()
