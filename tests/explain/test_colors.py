"""Notes in color on a terminal, where Python itself prints the error."""

import io
import sys

import pytest

import dtypeguard
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
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
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


def test_an_uncaught_error_has_them_and_keeps_its_notes(terminal):
    stream = terminal()
    colors.color_uncaught()
    caused = ValueError("caused")
    caused.__cause__ = error = noted()
    sys.excepthook(ValueError, caused, None)
    text = stream.getvalue()
    assert "\033[1;31mdtypeguard\033[0m: x  \033[33mbfloat16[3]\033[0m" in text
    assert "\033[36mCell In[3], line 5\033[0m" in text
    assert "\nof another tool: float32\n" in text
    assert error.__notes__ == [NOTE, "of another tool: float32"]


def test_explain_asks_for_them_where_it_adds_a_note(terminal):
    import jax
    import jax.numpy as jnp

    terminal()
    x = jnp.ones(3, jnp.bfloat16)
    with pytest.raises(TypeError, match="equal types") as caught, dtypeguard.explain():
        jax.lax.scan(lambda c, _: (c.astype(jnp.float32), None), x, None, 2)
    assert "\033" not in caught.value.__notes__[-1]
    assert sys.excepthook is not sys.__excepthook__


def test_another_hook_stays(terminal, monkeypatch):
    terminal()
    hook = lambda *_: None
    monkeypatch.setattr(sys, "excepthook", hook)
    colors.color_uncaught()
    assert sys.excepthook is hook


@pytest.mark.parametrize("name", ["a pipe", "no rich"])
def test_elsewhere_nothing_changes(name, terminal, monkeypatch):
    terminal()
    if name == "a pipe":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    else:
        monkeypatch.setattr(colors.importlib.util, "find_spec", lambda _: None)
    colors.color_uncaught()
    assert sys.excepthook is sys.__excepthook__
    assert colors.ansi(NOTE, sys.stderr) == NOTE


def test_no_color(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[3" not in colors.ansi(NOTE, terminal())
