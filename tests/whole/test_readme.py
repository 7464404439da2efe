"""The README's code runs, and its text is what the commands print."""

import contextlib
import io
import pathlib
import re

import jax.numpy as jnp
import optax
import pytest

import dtypeguard
from dtypeguard._cli.main import main

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
ONE = re.search(
    r"<!-- one: (.*?) \(optax (.*?)\) -->\n```text\n(.*?)\n```", README, flags=re.DOTALL
)
SWEEP = re.search(r"<!-- audit (.*?) -->\n```text\n(.*?)```", README, flags=re.DOTALL)

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("number", range(1, len(BLOCKS)))
def test_code_runs(number):
    exec(BLOCKS[number], {})


def test_the_first_block_drifts_and_then_does_not():
    *lines, last = BLOCKS[0].strip().splitlines()
    assert len([line for line in lines if line]) <= 10
    exec("\n".join(lines), names := {})
    with pytest.raises(
        TypeError, match="carry input and carry output must have equal types"
    ):
        exec(last, names)


def test_error_text():
    count = optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))
    opt = dtypeguard.guard(
        optax.GradientTransformation(
            lambda params: count, lambda u, s, p=None: (u, s._replace(count=jnp.ones(())))
        )
    )
    with pytest.raises(dtypeguard.DtypeDriftError) as error:
        opt.update({"w": jnp.ones(3)}, count)
    assert f"```text\n{error.value}\n```" in README


def test_sweep_text():
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(["audit", *SWEEP[1].split()]) == 0
    seconds = lambda text: re.sub(r"\d+ s; optax \S+ jax [^)]*", "", text).strip()
    assert seconds(out.getvalue()) == seconds(SWEEP[2])


def test_report_of_one_optimizer(capsys):
    argv, release, text = ONE.groups()
    if optax.__version__ != release:
        pytest.skip(f"the lines are those of optax {release}")
    assert main(["audit", *argv.split()]) == 1
    assert capsys.readouterr().out.strip() == text


def test_ci_runs_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    assert "grep -m 1 'pytest' README.md" in script
    command = next(line for line in README.splitlines() if "pytest" in line)
    assert command.endswith(".venv/bin/python -m pytest -n 2")
