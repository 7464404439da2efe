"""What long work shows: on a terminal alone, unless it is asked for."""

import io
import sys

import jax.numpy as jnp
import optax
import pytest

import dtypeguard
from dtypeguard.testing import check_contract
from tests.support.helpers import Terminal


def audit(progress):
    dtypeguard.audit_precision(jnp.exp, jnp.ones(3, jnp.bfloat16), progress=progress)


def check(progress):
    opt = dtypeguard.guard(optax.sgd(1.0))
    check_contract(opt, configurations=["bf16"], rules="cond", progress=progress)


@pytest.mark.third_party
@pytest.mark.parametrize("work", [audit, check])
def test_on_a_terminal_alone(work, monkeypatch):
    def shown(stream, progress):
        monkeypatch.setattr(sys, "stderr", stream)
        work(progress)
        return stream.getvalue()

    assert shown(io.StringIO(), None) == ""
    text = shown(Terminal(), None)
    assert text.startswith("\r\033[K")
    assert text.endswith("\r\033[K")  # nothing is left
    assert shown(Terminal(), False) == ""
    lines = shown(io.StringIO(), True).splitlines()
    assert lines[0] in ("tracing", "check_contract: configuration 1/2")
    assert len(lines) > 1


@pytest.mark.parametrize("work", [audit, check])
def test_a_wrong_argument(work):
    with pytest.raises(TypeError, match=r"got progress='yes'\. Write True, False, or None"):
        work("yes")
