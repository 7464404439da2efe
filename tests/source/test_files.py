"""A file is of a package by where it is installed, else the user's."""

import linecache
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import audit
from dtypeguard._source.files import is_installed, short_path
from tests.support.helpers import WARNINGS_ARE_ERRORS, child_variables

pytestmark = pytest.mark.third_party
SOURCE = """import jax.numpy as jnp

def update(updates):
    return [update * jnp.ones((), jnp.float32) for update in updates]
"""
# Cells without a file; folders on the path, which may be named as a package is.
NAMES = ["<ipython-input-1-0a>", "<string>", "cell.py"]
NAMES += ["parcel/wide.py", "optax/wide.py", "numpy/wide.py"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_installed_is_the_users(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file, names = name, {}
    if "/" in name:
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(SOURCE)
        file = str(path)
    exec(compile(SOURCE, file, "exec"), names)
    linecache.cache[file] = len(SOURCE), None, SOURCE.splitlines(True), file

    def update(updates, state, params=None):
        return names["update"](updates), state

    opt = optax.GradientTransformation(lambda params: (), update)
    (drift,) = audit(opt, [jnp.ones(3, jnp.bfloat16)]).drifts
    assert (drift.origin.file, drift.origin.called_from) == (file, None)
    assert not drift.origin.is_of_optimizer
    assert drift.origin.code.startswith("return [update * ")


def test_a_path_outside_the_working_directory_is_absolute(tmp_path, monkeypatch):
    file = tmp_path / "app" / "deep" / "a.py"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.chdir(tmp_path)
    assert short_path(str(file)) == os.path.join("app", "deep", "a.py")
    monkeypatch.chdir(tmp_path / "app" / "deep")
    assert short_path(str(file)) == "a.py"
    assert short_path(str(tmp_path / "x.py")) == str(tmp_path / "x.py")  # for an editor
    assert short_path("<stdin>") == "<stdin>"


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


def test_a_library_that_is_only_on_the_path_is_a_package(tmp_path):
    """Unpacked there, without any record, in a folder named as one of JAX's own."""
    (tmp_path / "nn").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    for library in jax, optax:
        source = pathlib.Path(library.__file__).parent
        (tmp_path / "nn" / source.name).symlink_to(source)
    variables = child_variables()
    path = os.pathsep.join([str(tmp_path / "nn"), variables["PYTHONPATH"]])
    outputs = [
        subprocess.run(
            [sys.executable, *WARNINGS_ARE_ERRORS, "script.py"],
            env=variables | {"PYTHONPATH": each},
            **{"cwd": tmp_path, "check": True, "text": True, "stdout": subprocess.PIPE},
        ).stdout
        for each in (path, variables["PYTHONPATH"])
    ]
    assert "Wrap the optimizer: dtypeguard.guard(opt)." in outputs[0]
    assert outputs[0] == outputs[1]


def test_a_package_in_a_folder_of_the_path_is_installed(tmp_path, monkeypatch):
    """As `pip install --target` leaves it, beside files of the project."""
    record = tmp_path / "nn-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("nn/layers.py,sha256=x,1\nalone.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = ["nn/layers.py", "alone.py", "train.py", "nn2/layers.py"]
    found = [is_installed(str(tmp_path / name)) for name in installed]
    assert found == [True, True, False, False]
