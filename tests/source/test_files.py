"""A file is of a package by where it is installed, else the user's."""

import linecache
import os
import pathlib
import runpy
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import audit, explain
from tests.support.helpers import WARNINGS_ARE_ERRORS, run_python
from tests.support.one_leaf import transformation

pytestmark = pytest.mark.third_party
SOURCE = """import jax.numpy as jnp

def update(updates):
    return [update * jnp.ones((), jnp.float32) for update in updates]
"""
# Cells without a file; folders on the path, which may be named as a package is.
NAMES = ["<ipython-input-1-0a>", "<string>", "cell.py"]
NAMES += ["parcel/wide.py", "optax/wide.py", "numpy/wide.py"]


def origin_in(file):
    """The line of a drift in a file, or in a cell that has the name of one."""
    if os.path.isabs(file):
        path = pathlib.Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
    names = {}
    exec(compile(SOURCE, file, "exec"), names)
    linecache.cache[file] = len(SOURCE), None, SOURCE.splitlines(True), file

    def update(updates, state, params=None):
        return names["update"](updates), state

    (drift,) = audit(transformation(update), [jnp.ones(3, jnp.bfloat16)]).drifts
    return drift.origin


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_installed_is_the_users(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / name) if "/" in name else name
    origin = origin_in(file)
    assert (origin.file, origin.called_from) == (file, None)
    assert str(origin) == f"{name}:4"
    assert not origin.is_of_optimizer
    assert origin.code.startswith("return [update * ")


def test_a_path_outside_the_working_directory_is_absolute(tmp_path, monkeypatch):
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    file = str(tmp_path / "x.py")
    assert str(origin_in(file)) == f"{file}:4"  # for an editor


SCRIPT = """
import jax, jax.numpy as jnp, optax
from dtypeguard import explain

params = jnp.ones(3, jnp.bfloat16)
opt = optax.adam(0.1)
state = opt.init(params)
try:
    with explain(), jax.numpy_dtype_promotion("strict"):
        opt.update(params.astype(jnp.float32), state, params)
except Exception as error:
    print(*error.__notes__)
"""


def test_a_library_that_is_only_on_the_path_is_a_package(tmp_path, monkeypatch, capsys):
    """Unpacked there, without any record, in a folder named as one of JAX's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nn").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    for library in jax, optax:
        source = pathlib.Path(library.__file__).parent
        (tmp_path / "nn" / source.name).symlink_to(source)
    runpy.run_path("script.py")
    output = capsys.readouterr().out
    assert "Wrap the optimizer: dtypeguard.guard(opt)." in output
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nn"))
    done = run_python(*WARNINGS_ARE_ERRORS, "script.py")
    assert (done.returncode, done.stdout) == (0, output), done.stderr


@pytest.mark.parametrize(
    ("name", "is_installed"),
    [
        ("nn/layers.py", True),
        ("alone.py", True),
        ("train.py", False),
        ("nn2/layers.py", False),
    ],
)
def test_a_package_in_a_folder_of_the_path_is_installed(
    name, is_installed, tmp_path, monkeypatch
):
    """As `pip install --target` leaves it, beside files of the project."""
    record = tmp_path / "nn-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("nn/layers.py,sha256=x,1\nalone.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (origin_in(str(tmp_path / name)).called_from is not None) == is_installed


def test_a_file_of_which_python_warns_is_read_without_a_warning(tmp_path):
    """Of an escape that is none: in `explain` a warning would be an error."""
    path, names = tmp_path / "source.py", {}
    path.write_text(f'"""\\m"""\n{SOURCE}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(path.read_text(), str(path), "exec"), names)
    update, strict = explain(names["update"]), jax.numpy_dtype_promotion("strict")
    with strict, pytest.raises(Exception, match="promotion") as error:
        update([jnp.ones(3, jnp.bfloat16)])
    (note,) = error.value.__notes__
    assert note.startswith("dtypeguard: update * jnp.ones((), jnp.float32) refuses")
