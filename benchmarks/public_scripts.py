"""Scripts and notebooks of public repositories, as they stand but for their sizes and data.

A script is read from a checkout below `DTYPEGUARD_SOURCES` (default: `.programs/sources`)
and run as a program. What it passes to `jit` under a name of `steps` is what its user would
guard: outside of `jit` or inside. The results of these steps are what is compared.
`REPOSITORIES` names the checkouts; `stand_ins.py` has small data in place of data sets.
"""

import contextlib
import functools
import importlib
import json
import linecache
import os
import pathlib
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import stand_ins

# The folder of each repository below `SOURCES`, and the commit whose texts are changed.
REPOSITORIES = {
    "equinox": "patrick-kidger/equinox 9336d82",
    "optax": "google-deepmind/optax 2edbcbe2",
    "jax": "google/jax 3bd8ca480",
    "dm-haiku": "google-deepmind/dm-haiku f4d858a",
    "flax": "google/flax 18f8f311",
    "jraph": "google-deepmind/jraph 51f5990",
    "distrax": "google-deepmind/distrax f51bffc",
    "PaLM-jax": "lucidrains/PaLM-jax 44a4231",
    "S5": "lindermanlab/S5 3c18fdb",
}
SOURCES = pathlib.Path(os.environ.get("DTYPEGUARD_SOURCES", ".programs/sources")).resolve()


class Script(NamedTuple):
    """A script and what of it is guarded.

    Attributes:
        path: the file, below `SOURCES`.
        steps: the arguments of `guard_step` by the name of the function that is jitted.
        changes: replacements in its text that make it small.
        end: text of the line before which it stops, if it does.
        tail: lines of ours that are put at its end, where it only defines a step.
        flags: arguments of its command line.
    """

    path: str
    steps: dict[str, dict[str, Any]]
    changes: tuple[tuple[str, str], ...] = ()
    end: str = ""
    tail: str = ""
    flags: tuple[str, ...] = ()


def run(script: Script, guards: Any) -> Any:
    """Runs a script; returns what its steps returned."""
    path = SOURCES / script.path
    text = source(script)
    name = "__main__"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    # Its lines are those of the text that runs, for the lines in messages.
    file = f"{path.with_suffix('')}.run.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    before = sys.argv, sys.path[:], dict(sys.modules)
    np.random.seed(0)
    random.seed(0)
    sys.argv = [file, *script.flags]
    sys.path.insert(0, str(path.parent))
    sys.path += map(str, path.parents[1:4])  # after what is installed
    sys.modules[name] = module
    try:
        with stand_ins.installed(text), _main(), jits(guards, script.steps):
            exec(compile(text, file, "exec"), vars(module))
    finally:
        sys.argv, sys.path[:], modules = before
        for other in [*sys.modules]:
            file = getattr(sys.modules[other], "__file__", None) or ""
            if other not in modules and file.startswith(str(SOURCES)):
                del sys.modules[other]
        sys.modules[name] = modules[name]
    if not guards.outputs:
        raise RuntimeError(f"none of {[*script.steps]} ran")
    return guards.outputs


def source(script: Script) -> str:
    """The text of a script as it runs."""
    path = SOURCES / script.path
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        lines = "\n".join("".join(cell["source"]) for cell in cells).splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith(("!", "%")))
    if script.end:
        if script.end not in text:
            raise ValueError(f"not in {script.path}: {script.end}")
        text = text[: text.rindex("\n", 0, text.index(script.end)) + 1]
    for old, new in script.changes:
        if old not in text:
            raise ValueError(f"not in {script.path}: {old}")
        text = text.replace(old, new)
    return text + script.tail


@contextlib.contextmanager
def _main() -> Iterator[None]:
    """Has `absl.app.run` call what it is given, with flags defined anew."""
    flags: Any
    app: Any
    flags, app = (importlib.import_module(f"absl.{name}") for name in ("flags", "app"))
    for flag in [*flags.FLAGS]:
        delattr(flags.FLAGS, flag)
    flags.DEFINE_boolean("alsologtostderr", False, "")
    before = app.run
    app.run = lambda main, *_, **__: main(flags.FLAGS(sys.argv))
    try:
        yield
    finally:
        app.run = before


@contextlib.contextmanager
def jits(guards: Any, steps: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Has every `jit` guard what it is given, if that is a step of a script."""
    places = [(jax, "jit"), (jax, "pmap")]
    for module, name in (("equinox", "filter_jit"), ("flax.nnx", "jit"), ("haiku", "jit")):
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(module)
            getattr(found, name)
            places.append((found, name))
    before = [getattr(module, name) for module, name in places]
    for (module, name), jit in zip(places, before):
        setattr(module, name, _jit(guards, jit, steps))
    try:
        yield
    finally:
        for (module, name), jit in zip(places, before):
            setattr(module, name, jit)


def _jit(guards: Any, jit: Any, steps: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    @functools.wraps(jit)
    def guarded(fun: Any = None, *args: Any, **options: Any) -> Any:
        if fun is None:
            return functools.partial(guarded, **options)
        inner = fun
        while isinstance(inner, functools.partial):
            inner = inner.func
        code = getattr(inner, "__code__", None)
        is_own = code is not None and code.co_filename.startswith(str(SOURCES))
        if not is_own or inner.__name__ not in steps:
            return jit(fun, *args, **options)
        return guards.jitted(
            lambda f: jit(f, *args, **options), fun, **steps[inner.__name__]
        )

    return guarded


# Lines of ours for scripts that define a step and leave its calls to others.
_MNIST = """
options = dict(batch_size=8, learning_rate=0.1, momentum=0.9, num_epochs=1)
train_and_evaluate(ml_collections.ConfigDict(options), "unused")
"""
_S5 = """
from s5.seq_model import BatchClassificationModel
from s5.ssm import init_S5SSM
from s5.ssm_init import make_DPLR_HiPPO

L, P, B, V, _ = make_DPLR_HiPPO(4)
L, V = L[:2], V[:, :2]
ssm = init_S5SSM(
    H=4, P=2, Lambda_re_init=L.real, Lambda_im_init=L.imag, V=V, Vinv=V.conj().T,
    C_init="trunc_standard_normal", discretization="zoh", dt_min=0.001, dt_max=0.1,
    conj_sym=True, clip_eigs=False, bidirectional=False,
)
model = partial(
    BatchClassificationModel, ssm=ssm, d_output=3, d_model=4, n_layers=1, padded=False,
    activation="half_glu1", dropout=0.0, mode="pool", prenorm=False, batchnorm=True,
    bn_momentum=0.95,
)
state = create_train_state(
    model, jax.random.PRNGKey(0), False, False, bsz=2, seq_len=8, batchnorm=True
)
for n in range(3):
    key = jax.random.PRNGKey(n)
    x = jax.random.normal(key, (2, 8, 1))
    rest = np.array([0, 1]), np.ones((2, 8)), model(training=True), True
    state, loss = train_step(state, key, x, *rest)
"""
# Texts in place of Shakespeare's.
_TEXTS = (
    "dict.fromkeys(('train', 'validation', 'test'), type('Texts', (list,), {"
    "'concatenate': lambda a, b: a, 'as_numpy_iterator': list.__iter__})"
    "([{'text': b'to be or not to be ' * 99}]))"
)
# Named by their files; the changes make them small. A commit of a repository that is
# newer than the one in `REPOSITORIES` may need others.
_SCRIPTS = (
    Script(
        "equinox/docs/examples/mnist.ipynb",
        {"make_step": {"carry": ("model", "opt_state"), "returned": (0, 1)}},
        changes=(
            ("STEPS = 300", "STEPS = 3"),
            ("BATCH_SIZE = 64", "BATCH_SIZE = 4"),
            ("1728, 512", "1728, 32"),
            ("\njax.value_and_grad(loss)(model, dummy_x, dummy_y)", "\n"),
            ("512, 64", "32, 64"),
        ),
    ),
    Script(
        "equinox/docs/examples/frozen_layer.ipynb",
        {"make_step": {"carry": ("model", "opt_state"), "returned": (0, 1)}},
        changes=(("steps=", "steps=4 or "),),
    ),
    Script(
        "equinox/docs/examples/parallelism.ipynb",
        {"train_step": {"carry": (0, 1)}},
        changes=(
            ("num_steps = 100", "num_steps = 3"),
            ('jax.config.update("jax_num_cpu_devices", 8)', ""),
        ),
    ),
    Script(
        "equinox/docs/examples/score_based_diffusion.ipynb",
        {"make_step": {"carry": ("model", "key", "opt_state"), "returned": (1, 2, 3)}},
        changes=(
            ("num_steps=1_000_000", "num_steps=3"),
            ("batch_size=256", "batch_size=4"),
            ("hidden_size=64", "hidden_size=8"),
            ("mix_patch_size=512", "mix_patch_size=8"),
            ("mix_hidden_size=512", "mix_hidden_size=8"),
            ("num_blocks=4", "num_blocks=1"),
            (
                "data = mnist()",
                "data = jnp.arange(16*784, dtype=jnp.uint8).reshape(16,1,28,28)",
            ),
            ("sample_size=10", "sample_size=1"),
            ("dt0=0.1", "dt0=5.0"),
        ),
    ),
    Script("equinox/docs/examples/stateful.ipynb", {"make_step": {"carry": (0, 1, 2)}}),
    Script(
        "equinox/docs/examples/train_rnn.ipynb",
        {"make_step": {"carry": ("model", "opt_state"), "returned": (1, 2)}},
        changes=(("dataset_size=10000", "dataset_size=64"), ("steps=200", "steps=3")),
    ),
    Script("optax/examples/gradient_accumulation.ipynb", {"update": {"carry": (0, 1)}}),
    Script(
        "optax/examples/lookahead_mnist.ipynb",
        {"train_step": {"carry": ("params", "solver_state"), "returned": (0, 1)}},
        changes=(("BATCH_SIZE = 256", "BATCH_SIZE = 8"),),
    ),
    Script(
        "optax/examples/nanolm.ipynb",
        {"step": {"carry": ("params", "key", "opt_state"), "returned": (0, 1, 2)}},
        changes=(
            (
                'tfds.load("tiny_shakespeare")',
                _TEXTS,
            ),
            ("N_ITERATIONS =", "N_ITERATIONS = 3 #"),
            ("NUM_LAYERS =", "NUM_LAYERS = 1 #"),
            ("BLOCK_SIZE =", "BLOCK_SIZE = 8 #"),
            ("EMBED_SIZE =", "EMBED_SIZE = 16 #"),
            ("HEAD_SIZE =", "HEAD_SIZE = 8 #"),
            ("NUM_HEADS =", "NUM_HEADS = 2 #"),
            ("BATCH_SIZE =", "BATCH_SIZE = 2 #"),
        ),
        end="plt.title(",
    ),
    Script(
        "optax/examples/meta_learning.ipynb",
        {"outer_step": {"carry": (0, 1, 2, 3)}},
        changes=(("range(2000)", "range(3)"),),
        end="fig, (ax1",
    ),
    Script(
        "optax/examples/contrib/differentially_private_sgd.ipynb",
        {"train_step": {"carry": (0, 1)}},
        changes=(
            ("NUM_EPOCHS = 15", "NUM_EPOCHS = 1"),
            ("BATCH_SIZE = 256", "BATCH_SIZE = 8"),
        ),
        end="if DPSGD:\n  _, axs",
    ),
    Script(
        "optax/examples/contrib/reduce_on_plateau.ipynb",
        {"train_step": {"carry": (0, 1)}},
        changes=(
            ("N_EPOCHS = 50", "N_EPOCHS = 2"),
            ("BATCH_SIZE = 128", "BATCH_SIZE = 8"),
            ("(1000, 1000)", "(16, 16)"),
        ),
        end="def plot(",
    ),
    Script(
        "optax/examples/contrib/sam.ipynb",
        {"step": {}},
        changes=(("range(T)", "range(6)"),),
        end="ts = np.arange(T)",
    ),
    Script(
        "jax/examples/mnist_classifier.py",
        {"update": {"carry": "opt_state"}},
        changes=(
            ("num_epochs = 10", "num_epochs = 2"),
            ("batch_size = 128", "batch_size = 16"),
            ("Dense(1024)", "Dense(16)"),
        ),
    ),
    Script(
        "jax/examples/mnist_vae.py",
        {"run_epoch": {"carry": "opt_state"}},
        changes=(
            ("num_epochs = 100", "num_epochs = 2"),
            ("batch_size = 32", "batch_size = 8"),
            ("Dense(512)", "Dense(16)"),
        ),
    ),
    Script(
        "jax/examples/differentially_private_sgd.py",
        {"private_update": {"carry": "opt_state", "returned": None}},
        changes=(
            ("'epochs', 60", "'epochs', 1"),
            ("'batch_size', 256", "'batch_size', 16"),
        ),
    ),
    Script(
        "jax/examples/advi.py",
        {"update": {"carry": "opt_state"}},
        changes=(("range(100)", "range(3)"),),
    ),
    Script(
        "jax/examples/kernel_lsq.py",
        {"update": {"carry": "opt_state"}},
        changes=(("num_steps=10000", "num_steps=4"),),
    ),
    Script(
        "dm-haiku/examples/mnist.py",
        {"update": {}},
        changes=(
            ("range(3001)", "range(3)"),
            ("batch_size=1_000", "batch_size=8"),
            ("batch_size=10_000", "batch_size=8"),
            ("Linear(300)", "Linear(16)"),
        ),
    ),
    Script(
        "dm-haiku/examples/vae.py",
        {"update": {}},
        changes=(
            ("training_steps: int = 5000", "training_steps: int = 3"),
            ("batch_size: int = 128", "batch_size: int = 8"),
            ("hidden_size: int = 512", "hidden_size: int = 16"),
        ),
    ),
    Script(
        "dm-haiku/examples/transformer/train.py",
        {"update": {}},
        changes=(
            ("from examples.transformer import", "import"),
            ("MAX_STEPS = 10**6", "MAX_STEPS = 3"),
            ("SEQUENCE_LENGTH = 64", "SEQUENCE_LENGTH = 8"),
            ("NUM_LAYERS = 6", "NUM_LAYERS = 1"),
            ("MODEL_SIZE = 128", "MODEL_SIZE = 16"),
            ("KEY_SIZE = 32", "KEY_SIZE = 4"),
        ),
        flags=(f"--dataset_path={__file__}",),
    ),
    Script(
        "flax/examples/nnx_toy_examples/02_lifted_transforms.py",
        {"train_step": {}},
        changes=(("10_000", "4"), ("plt.", "#plt.")),
    ),
    Script(
        "flax/examples/nnx_toy_examples/03_train_state.py",
        {"train_step": {}},
        changes=(("10_000", "4"),),
    ),
    Script(
        "flax/examples/nnx_toy_examples/10_fsdp_and_optimizer.py",
        {"train_step": {}},
        changes=(("10_000", "3"),),
    ),
    Script(
        "flax/examples/mnist/train.py",
        {"train_step": {}},
        changes=(
            ("nnx.Conv(1, 32", "nnx.Conv(1, 4"),
            ("nnx.BatchNorm(32", "nnx.BatchNorm(4"),
            ("nnx.Conv(32, 64", "nnx.Conv(4, 4"),
            ("nnx.BatchNorm(64", "nnx.BatchNorm(4"),
            ("3136, 256", "196, 8"),
            ("nnx.Linear(256", "nnx.Linear(8"),
        ),
        end="  # Export the model",
        tail=_MNIST,
    ),
    Script(
        "flax/examples/seq2seq/train.py",
        {"train_step": {}},
        tail="app.run(main)\n",
        flags=(
            "--num_train_steps=3",
            "--batch_size=4",
            "--hidden_size=8",
            "--decode_frequency=100",
            "--max_len_query_digit=2",
        ),
    ),
    Script(
        "jraph/jraph/examples/zacharys_karate_club.py",
        {"update": {"carry": (0, 1)}},
        changes=(("num_steps=30", "num_steps=3"),),
    ),
    Script(
        "jraph/jraph/examples/sat.py",
        {"update": {"carry": (0, 1)}},
        changes=(("num_steps=10000", "num_steps=3"), ("range(100)", "range(2)")),
    ),
    Script(
        "jraph/jraph/examples/e_voting.py",
        {"update": {"carry": (0, 1)}},
        changes=(("num_steps=100000", "num_steps=3"), ("range(100)", "range(2)")),
    ),
    Script(
        "distrax/examples/vae.py",
        {"update": {"carry": ("params", "opt_state"), "returned": (0, 1)}},
        flags=("--training_steps=3", "--batch_size=4"),
    ),
    Script(
        "distrax/examples/flow.py",
        {"update": {"carry": ("params", "opt_state"), "returned": (0, 1)}},
        flags=(
            "--training_steps=2",
            "--batch_size=4",
            "--flow_num_layers=2",
            "--hidden_size=8",
        ),
    ),
    Script(
        "PaLM-jax/train.py",
        {"train_step": {"carry": ("model", "optim_state"), "returned": (0, 1)}},
        changes=(
            ("@eqx.filter_jit(kwargs=dict(data=True))", "@eqx.filter_jit"),
            ("dim = 512", "dim = 8"),
            ("depth = 8", "depth = 1"),
            ("heads = 8", "heads = 2"),
            ("dim_head = 64", "dim_head = 4"),
            ("range(NUM_BATCHES)", "range(1)"),
            ("with gzip.open('./data/enwik8.gz') as file:", "if 1:"),
            (
                "np.fromstring(file.read(int(95e6)), dtype=np.uint8)",
                "np.random.default_rng(0).integers(0, 255, 5000, np.uint8)",
            ),
            ("int(90e6)", "4000"),
            ("SEQ_LEN = 1024", "SEQ_LEN = 8"),
            ("if i % SAMPLE_EVERY == 0", "if 0"),
        ),
    ),
    Script(
        "S5/s5/train_helpers.py",
        {"train_step": {"carry": "state"}},
        changes=(
            ("import jax\n", "import jax, jax.numpy\njax.numpy.DeviceArray = jax.Array\n"),
            (".unfreeze()", ""),
            ("jax.tree_leaves", "jax.tree_util.tree_leaves"),
        ),
        tail=_S5,
    ),
)


def programs(folder: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The programs of a repository, by the name of their file."""
    for script in _SCRIPTS:
        if script.path.startswith(f"{folder}/"):
            path = pathlib.PurePath(script.path)
            name = path.parent.name if path.stem == "train" else path.stem
            yield name, functools.partial(run, script)


PACKAGES = {
    f"{folder} scripts": functools.partial(programs, folder) for folder in REPOSITORIES
}
