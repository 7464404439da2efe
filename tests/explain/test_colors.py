"""Notes in color on a terminal."""

import io
import sys

import pytest

from dtypeguard._explain import colors

pytest.importorskip("rich")
NOTE = (
    "dtypeguard: x  bfloat16[3] -> float32[3]  Cell In[3], line 5  forced by nowhere.py:7"
)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Begins to stand for standard error when it is called."""
    stream = _Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def begin():
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return begin


def noted():
    error = TypeError("types")
    error.add_note(NOTE)
    error.add_note("of another tool: float32")
    return error


def test_notes_have_them_on_a_terminal_and_stay_as_they_are(terminal):
    terminal()
    caused = ValueError("caused")
    caused.__cause__ = error = noted()
    with colors.colored_notes(caused):
        text, other = error.__notes__
    assert "\033[1;31mdtypeguard\033[0m: x  \033[33mbfloat16[3]\033[0m" in text
    assert "\033[36mCell In[3], line 5\033[0m" in text
    assert other == "of another tool: float32"
    assert error.__notes__ == [NOTE, other]


@pytest.mark.parametrize("name", ["a pipe", "no rich"])
def test_elsewhere_nothing_changes(name, terminal, monkeypatch):
    terminal()
    if name == "a pipe":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    else:
        monkeypatch.setattr(colors.importlib.util, "find_spec", lambda _: None)
    assert colors.ansi(NOTE, sys.stderr) == NOTE


def test_no_color(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[3" not in colors.ansi(NOTE, terminal())
