"""What `import dtypeguard` and each of its names import, in a process of their own."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest
from helpers import child_variables

import dtypeguard

LOADED = "\nimport json, sys; print(json.dumps([*sys.modules]))"
JAX = "import jax.numpy as jnp, optax"
OTHERS = {"equinox", "flax", "matplotlib", "pandas", "rich"}
AUDITS = {
    "_audit",
    "_costs",
    "_explain",
    "_lines",
    "_numbers",
    "_precision",
    "_program",
}
AUDITS |= {"_sweep", "_cli"}


def _run(code, *options):
    """What a new process prints on standard output."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=child_variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _loaded(code):
    """What is imported after a program: packages, and the rooms of dtypeguard."""
    names = json.loads(_run(code + LOADED))
    packages = {name.partition(".")[0] for name in names}
    rooms = {name.split(".")[1] for name in names if name.startswith("dtypeguard.")}
    return packages, rooms


@pytest.fixture(scope="module")
def bare():
    """The packages that JAX and Optax import: of `OTHERS` JAX 0.4 has rich."""
    return _loaded(JAX)[0]


def test_dtypeguard_alone_imports_nothing_else():
    """Nor where a warning is filtered, nor for its help."""
    packages, rooms = _loaded("import dtypeguard")
    assert rooms == set()
    assert not packages & {"jax", "jaxlib", "numpy", "optax", "equinox", "rich"}
    code = "import warnings, dtypeguard\nwarnings.simplefilter('error', "
    packages, _ = _loaded(f"{code}dtypeguard.DtypeGuardWarning)")
    assert not packages & {"jax", "numpy", "optax"}


USES = """
dtypeguard.guard(optax.adam(1e-3)).init(jnp.ones(3))
dtypeguard.guard_step(lambda x: 2 * x)(dtypeguard.strong(1.0))
dtypeguard.multi_steps(dtypeguard.prodigy(), 2).init(jnp.ones(3))
"""


def test_guards_and_optimizers_import_no_audit(bare):
    packages, rooms = _loaded(f"{JAX}, dtypeguard\n{USES}")
    assert not rooms & AUDITS
    assert packages & OTHERS == bare & OTHERS


def test_an_audit_imports_no_terminal_and_no_plots(bare):
    code = "dtypeguard.audit(optax.sgd(1.0), jnp.ones(3))"
    packages, rooms = _loaded(f"{JAX}, dtypeguard\n{code}")
    assert "_audit" in rooms
    assert not rooms & {"_explain", "_precision", "_sweep", "_cli"}
    assert packages & OTHERS == bare & OTHERS


def test_the_command_line_imports_jax_only_for_a_report():
    code = "from dtypeguard._cli.main import main; main(['audit', '--help'])"
    *_, names = _run(code + LOADED).splitlines()
    assert not {"jax", "numpy"} & {*json.loads(names)}


def test_type_checkers_and_python_see_the_same_names():
    file = pathlib.Path(dtypeguard.__file__)
    checked, at_run_time = (
        node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)
    )
    files = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        assert all(alias.name == alias.asname for alias in node.names)
        files[node.module] = tuple(alias.name for alias in node.names)
    assert files == dtypeguard._FILES
    assert isinstance(at_run_time.test, ast.UnaryOp)


def test_dir_and_a_star_import_have_every_name():
    assert {*dtypeguard.__all__} <= {*dir(dtypeguard)}
    assert not {"importlib", "sys", "warnings", "TYPE_CHECKING"} & {*dir(dtypeguard)}
    names = _run("from dtypeguard import *\nprint(*sorted(globals()))").split()
    assert [name for name in names if not name.startswith("_")] == sorted(
        dtypeguard.__all__
    )


@pytest.mark.parametrize("name", dtypeguard._DEPRECATED)
def test_a_name_that_goes_says_what_serves_in_its_place(name):
    file, instead = dtypeguard._DEPRECATED[name]
    assert name not in {*dtypeguard.__all__, *dir(dtypeguard)}
    told = f"dtypeguard.{name} is .*Use {re.escape(instead)}"
    if file:
        with pytest.warns(DeprecationWarning, match=told) as warned:
            thing = getattr(dtypeguard, name)
        assert warned[0].filename == __file__
        assert thing.__name__ == name
    else:
        with pytest.raises(AttributeError, match=told):
            getattr(dtypeguard, name)


def test_names_may_be_used_first_while_jax_traces():
    """Under every flag: no file keeps an array or an option of the time of its import."""
    code = """
import dtypeguard, jax, jax.numpy as jnp

@jax.jit
def first(x):
    for name in dtypeguard.__all__:
        getattr(dtypeguard, name)
    return dtypeguard.strong(x)

jax.config.update("jax_enable_x64", True)
with jax.checking_leaks(), jax.numpy_dtype_promotion("strict"):
    first(jnp.ones(3, jnp.float32))
jax.config.update("jax_enable_x64", False)
print(dtypeguard.strong(1.0).dtype, dtypeguard.strong(jnp.ones(2, jnp.bfloat16)).dtype)
"""
    assert _run(code, "-W", "error") == "float32 bfloat16\n"
