"""Wrong usage of every command exits with 2, prints nothing, and says what to write."""

import pytest

from dtypeguard._cli.main import main
from dtypeguard._cli.options import COMMANDS, parser

pytestmark = pytest.mark.third_party
SCRIPT = """
import jax, jax.numpy as jnp, optax

class Fails:
    @property
    def step(self):
        raise ValueError("no such step")

fails, opt, three = Fails(), optax.sgd(0.1), 3
x, count, shapes = jnp.ones(3), (jnp.arange(3), 2), jax.ShapeDtypeStruct((3,), jnp.float32)

def step(c, x):
    return c + x, None

def loss(c, x):
    return c * x

def breaks(c, x):
    return c @ x[:1]  # here

def raises():
    raise KeyError("data")  # data

def takes_some(rate, nesterov=None):
    assert nesterov is None

def settings(**given):
    assert given == {"a": 1e-3, "b": False, "c": "text", "d": None, "e": [1]}
    return opt

inputs = lambda: (x, x)
"""
WRONG = """
 | required: command. Write for example: dtypeguard audit optax:adam
sweep | sweep is replaced: it is part of dtypeguard's own tests now. For your own
sweeep | invalid choice: 'sweeep'
train.py | Did you mean dtypeguard run train.py?
demo prodigi | Write for example: dtypeguard demo prodigy
docs no_such_page | no page 'no_such_page'. To list them: dtypeguard docs
run no_such_script.py | can't open file 'no_such_script.py': No such file
run -m | no script is named. Write for example: dtypeguard run train.py
run --x64 a.py | arguments: --x64. Write for example: dtypeguard run train.py
run --format yaml a.py | invalid choice: 'yaml'
audit | required: TARGET. Write for example: dtypeguard audit
audit optax:adam --x65 | unrecognized arguments: --x65
audit optax:adam --format yaml | invalid choice: 'yaml'
audit optax.adam | or FILE.py:NAME. Write
audit optax:adm | optax has no adm. Did you mean adam? Write for example
audit no_such_module:opt | no_such_module cannot be imported: ModuleNot
audit no_such_file.py:opt | cannot be imported: FileNotFoundError
audit optax:adam | optax:adam needs learning_rate. If it is a step: dtypeguard audit
audit optax:adam | dtypeguard audit optax:adam --set learning_rate=VALUE, or audit FILE
audit :takes_some --set nesterov=1 --set rate=1 | assert nesterov is None It takes rate
audit :step | it is a step: dtypeguard audit my_script.py:step --inputs my_script
audit optax:sgd --set 1 | '1' is not name=value
audit optax:sgd --set rate=1 | It takes learning_rate, momentum, nesterov,
audit :opt --set rate=1 | is an optimizer already and takes no --set
audit optax:sgd --params f99 | 'f99' is not a dtype. Write for example
audit optax:sgd --params= | '' is not a dtype
audit optax:sgd --grads int32 | int32 is not floating or complex
audit optax:sgd --set learning_rate=1 --params float64 | float64 needs --x64 as well
audit optax:constant_schedule --set value=1 | which is not an optimizer
audit optax:__version__ | neither an optimizer nor a function
audit :fails.step | my_script.py:fails.step cannot be read: ValueError: no such
audit :three.step | my_script.py has no three.step
audit optax:adam --json no/such/a.json | 'no/such/a.json' cannot be written
audit :step --inputs :inputs --params bf16 | --params is for an optimizer
audit :step --carry 1 | --carry is for a step
audit :step --inputs inputs | Write for example: --inputs my_script.py:inputs
audit :step --inputs :nope | my_script.py has no nope. Write for example: --inputs
audit :step --inputs :raises | raises cannot be called: KeyError: 'data'
audit :opt --inputs :inputs | For an optimizer there are
lock :opt --inputs :inputs | For an optimizer there are
lock :step | dtypeguard lock my_script.py:step --inputs
precision :loss | --inputs. Write for example: dtypeguard precision my_script.py:loss
plan :loss | --inputs. Write for example: dtypeguard precision my_script.py:loss
precision :nothing --inputs :inputs | has no nothing. Write for example: dtypeguard
precision :three --inputs :inputs | audit_precision got
precision :loss --inputs :x | does not run with what my_script.py:x gives
precision :loss --inputs :raises | # data
precision :breaks --inputs :inputs | # here
precision :breaks --inputs :inputs | It is an error of the program itself, called with what
precision :loss --inputs :count --narrow i8 | i8 is not floating or complex
precision :loss --inputs :inputs --wide int32 | int32 is not floating
precision :loss --inputs :inputs --tolerance -1 | '-1' is not a relative error
precision :loss --inputs :inputs --tolerance foo | 'foo' is not a relative error: write a
precision :loss --inputs :inputs --matmul-precision tpus | matmul_precision="tpu"
precision :loss --inputs :inputs --reference no.npz | numpy.savez(file, **{
precision :loss --inputs :inputs --out a.plan | a search needs --narrow. Write for example
precision :loss --inputs :inputs --json no/such.json | 'no/such.json' cannot be written
precision :loss --inputs :inputs --check a --narrow bf16 | --narrow is for a search: a says
precision :loss --inputs :inputs --check a --out b | not allowed with argument
precision :loss --inputs :inputs --check none.plan | none.plan does not exist
"""
CASES = [
    tuple(x.strip() for x in line.split("|")) for line in WRONG.strip("\n").split("\n")
]


@pytest.fixture(autouse=True)
def mine(folder):
    (folder / "my_script.py").write_text(SCRIPT)
    return folder


@pytest.mark.parametrize(("words", "message"), CASES)
def test_wrong_usage(words, message, mine, capsys):
    words = [f"my_script.py{x}" if x.startswith(":") else x for x in words.split()]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""
    assert [file.name for file in mine.glob("*") if file.is_file()] == ["my_script.py"]


def test_help_shows_at_most_forty_options_and_every_status(capsys):
    options = {"": ["--version"]}
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        text = capsys.readouterr().out
        options[name] = [
            x for x in text.split() if x.startswith("--") and x[-1] not in ".,;"
        ]
        if name not in ("run", "demo", "docs"):
            assert ", 2 if it cannot run" in " ".join(text.split())
        listed = {x.strip("[]") for x in options[name]} - {"--help"}
        options[name] = sorted(listed & {*_options_of(name)})
    assert sum(map(len, options.values())) <= 40, options
    assert main(["--version"]) == main(["--help"]) == 0
    assert "Runs a script" in capsys.readouterr().out


def _options_of(name):
    (choices,) = (x.choices for x in parser()._actions if isinstance(x.choices, dict))
    return [y for x in choices[name]._actions for y in x.option_strings if x.help]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("audit :opt --params float32 --markdown", "--markdown is replaced: text is"),
        ("audit :opt --params float32 --updates float32", "--updates is replaced: write"),
        ("audit :step --step --inputs :inputs", "--step is replaced: --inputs says"),
        ("audit :step --inputs :inputs", ""),
    ],
)
def test_what_was_replaced_still_works(words, sentence, capsys):
    words = [f"my_script.py{x}" if x.startswith(":") else x for x in words.split()]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dtypeguard: {sentence}" if sentence else "")
    assert bool(captured.err) is bool(sentence)
    assert "no leaf changed" in captured.out


def test_what_a_setting_is():
    """As in Python, and true, false and none as in other languages."""
    argv = ["audit", "my_script.py:settings", "--params", "float32"]
    words = ["a=1e-3", "b=false", "c=text", "d=None", "e=[1]"]
    assert main([*argv, *(x for word in words for x in ("--set", word))]) == 0


def test_what_stands_in_a_file_outlasts_wrong_usage(mine):
    file = mine / "old.json"
    file.write_text("old")
    argv = ["audit", "optax:adam", "--json", str(file)]
    assert main(argv) == 2
    assert file.read_text() == "old"
    assert main([*argv, "--set", "learning_rate=1", "--params", "float32"]) == 0
    assert file.read_text().startswith("{")
    assert main(["audit", "my_script.py:opt", "--json", "/dev/null"]) == 0
