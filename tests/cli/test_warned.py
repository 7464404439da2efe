"""Under `dtypeguard run`, a warning over dtypes comes with the user's line, once."""

import re
import sys
import warnings

import pytest

from dtypeguard._source.files import short_path

pytestmark = pytest.mark.third_party
SCRIPT = """
import sys, warnings
warnings.simplefilter("{filter}")
sys.path.insert(0, {folder!r})
import jax.numpy as jnp
from some_package import put, zeros

def fill():
    x = jnp.zeros(3, jnp.bfloat16)  # of what is written to
    y = jnp.ones(())  # of the value
    return put(x, y)  # of a scatter

for _ in range(2):
    fill()
    zeros(3)  # of zeros
own = jnp.zeros(3, jnp.float64)
warnings.warn("float32 is what the script says")
"""
PACKAGE = """
import jax.numpy as jnp

def put(x, y):
    return x.at[0].set(y)

def zeros(n):
    return jnp.zeros(n, jnp.float64)
"""


@pytest.fixture
def lines(run, script, tmp_path):
    """The lines that begin with `dtypeguard run`, under a filter of warnings."""

    def of(name):
        script(PACKAGE, "packages/some_package/__init__.py")
        info = "packages/some_package-1.0.dist-info"
        script(
            "Metadata-Version: 2.1\nName: some_package\nVersion: 1.0\n", f"{info}/METADATA"
        )
        script("some_package/__init__.py,,\n", f"{info}/RECORD")
        text = SCRIPT.format(filter=name, folder=str(tmp_path / "packages"))
        path = script(text, f"{name}.py")
        with warnings.catch_warnings(record=True):
            _, _, err = run(path)
        found = [x for x in err.splitlines() if re.match("dtypeguard run|    ", x)]
        marks = {
            text.partition("# ")[2]: f"{short_path(str(path))}:{number}"
            for number, text in enumerate(path.read_text().splitlines(), 1)
        }
        return found, marks

    return of


@pytest.mark.parametrize("name", ["default", "always"])
def test_the_line_that_leads_to_a_package(lines, name):
    found, marks = lines(name)
    begin = "dtypeguard run: the warning above comes from"
    assert [x for x in found if x.startswith(begin)] == [
        f"{begin} {marks['of a scatter']}: return put(x, y)  # of a scatter",
        f"{begin} {marks['of zeros']}: zeros(3)  # of zeros",
    ]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="values are recorded from 3.12 on")
def test_the_lines_of_what_is_written_and_where(lines):
    found, marks = lines("default")
    assert [x for x in found if "[" in x] == [
        f"    bfloat16[3] is made at {marks['of what is written to']}",
        f"    float32[] is made at {marks['of the value']}",
    ]


def test_no_line_of_a_warning_that_is_not_shown(lines):
    found, _ = lines("ignore")
    assert found == []
