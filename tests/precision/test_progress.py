"""What long work shows: on a terminal alone, unless it is asked for."""

import io
import sys

import jax.numpy as jnp
import optax
import pytest

import dtypeguard
from dtypeguard._precision.prepared import counted, status
from dtypeguard.testing import check_contract


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, run):
    monkeypatch.setattr(sys, "stderr", stream)
    run()
    return stream.getvalue()


def audit(progress):
    return lambda: dtypeguard.audit_precision(
        jnp.exp, jnp.ones(3, jnp.bfloat16), progress=progress
    )


def check(progress):
    opt = dtypeguard.guard(optax.sgd(1.0))
    return lambda: check_contract(
        opt, configurations=["bf16"], rules="cond", progress=progress
    )


@pytest.mark.third_party
@pytest.mark.parametrize("work", [audit, check])
def test_on_a_terminal_alone(work, monkeypatch):
    assert shown(monkeypatch, io.StringIO(), work(None)) == ""
    text = shown(monkeypatch, _Terminal(), work(None))
    assert text.startswith("\r\033[K")
    assert text.endswith("\r\033[K")  # nothing is left
    assert shown(monkeypatch, _Terminal(), work(False)) == ""
    lines = shown(monkeypatch, io.StringIO(), work(True)).splitlines()
    assert lines[0] in ("tracing", "check_contract: configuration 1/2")
    assert len(lines) > 1


@pytest.mark.parametrize("work", [audit, check])
def test_a_wrong_argument(work):
    with pytest.raises(TypeError, match=r"got progress='yes'\. Write True, False, or None"):
        work("yes")()


def test_counted():
    with status(False) as show:
        assert list(counted("ab", 2, show, "at")) == ["a", "b"]
