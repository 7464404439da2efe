"""A file is of a package by where it is installed, else the user's."""

import importlib
import linecache
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import WARNINGS_ARE_ERRORS, child_variables

from dtypeguard import audit
from dtypeguard._source.files import package, short_path

pytestmark = pytest.mark.third_party
BF16 = jnp.bfloat16
SOURCE = """import jax.numpy as jnp

def widened(updates):
    return [update * jnp.ones((), jnp.float32) for update in updates]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where `import` looks first, with nothing of what it finds there left behind."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def origin_of(widened):
    """The line that makes a user's optimizer drift, which calls another function."""

    def update(updates, state, params=None):
        return widened(updates), state

    opt = optax.GradientTransformation(lambda params: (), update)
    (drift,) = audit(opt, [jnp.ones(3, BF16)]).drifts
    return drift.origin


def test_a_folder_on_the_path_is_the_users(folder):
    write(folder, {"parcel/wide.py": SOURCE})
    origin = origin_of(importlib.import_module("parcel.wide").widened)
    assert origin.file == str(folder / "parcel" / "wide.py")
    assert origin.called_from is None
    assert package(origin.file) == ""


@pytest.mark.parametrize("name", ["<ipython-input-1-0a>", "<string>", "cell.py"])
def test_code_without_a_file_is_the_users(name):
    names = {}
    exec(compile(SOURCE, name, "exec"), names)
    linecache.cache[name] = len(SOURCE), None, SOURCE.splitlines(True), name
    origin = origin_of(names["widened"])
    assert (origin.file, origin.called_from) == (name, None)
    assert origin.code.startswith("return [update * ")


def test_a_path_outside_the_working_directory_is_absolute(folder, monkeypatch):
    write(folder, {"app/__init__.py": "", "app/deep/__init__.py": "", "app/deep/a.py": ""})
    file = str(folder / "app" / "deep" / "a.py")
    monkeypatch.chdir(folder)
    assert short_path(file) == os.path.join("app", "deep", "a.py")
    monkeypatch.chdir(folder / "app")
    assert short_path(file) == os.path.join("deep", "a.py")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert short_path(file) == file  # which an editor opens
    assert short_path(str(folder / "x.py")) == str(folder / "x.py")
    assert short_path("<stdin>") == "<stdin>"


def test_a_folder_named_as_a_package_is_the_users(folder, monkeypatch):
    """An `update` of one's own below a folder `optax` is none of Optax's."""
    monkeypatch.chdir(folder)
    source = SOURCE.replace("widened", "update")
    write(folder, {"optax/wide.py": source, "numpy/wide.py": source})
    for name in "optax", "numpy":
        file = str(folder / name / "wide.py")
        names = {}
        exec(compile(source, file, "exec"), names)
        origin = origin_of(names["update"])
        assert (origin.file, origin.called_from) == (file, None)
        assert not origin.is_of_optimizer


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
