"""The mistakes that people make in the programs, as changes to their lines.

A program is a file beside this one with one function, `train(dtype, opt, step, mistake)`:
`dtype` is its own knob, `opt` stands where its author would write `dtypeguard.guard`, and
`step` where `dtypeguard.guard_step`. It returns its losses, its first carry, its last, and
how often what it hands to `jit` was traced. Given the name of a mistake it makes it, at the
line below that name that ends with the comment `# the mistake`. One without such a line
fails as it is.
"""

import pathlib
from typing import NamedTuple

import jax.numpy as jnp

HERE = pathlib.Path(__file__).parent
# The dtype of a program, and whether x64 is on.
CONFIGURATIONS = {
    "float32": (jnp.float32, False),
    "bfloat16": (jnp.bfloat16, False),
    "x64": (jnp.float32, True),
}


class Mistake(NamedTuple):
    """A program that fails or drifts; "source" is a remedy where no guard fixes it."""

    program: str
    configuration: str
    remedy: str
    name: str


MISTAKES = [
    Mistake("equinox_rnn", "bfloat16", "guard_step", "sequences left in float32"),
    Mistake("equinox_rnn", "bfloat16", "guard_step", "a loss that is averaged in float32"),
    Mistake("equinox_rnn", "bfloat16", "guard", "a float32 learning rate"),
    Mistake(
        "nnx_classifier", "bfloat16", "guard", "gradients times a float32 number in a scan"
    ),
    Mistake(
        "nnx_classifier", "bfloat16", "guard_step", "a running spread in float32 in a loop"
    ),
    Mistake(
        "nnx_classifier", "bfloat16", "guard_step", "a running spread in float32 in a scan"
    ),
    Mistake(
        "haiku_rnn", "bfloat16", "guard_step", "weights that shrink by a number from NumPy"
    ),
    Mistake("haiku_rnn", "bfloat16", "guard_step", "inputs that fade in float32"),
    Mistake("haiku_rnn", "x64", "guard_step", "waves in float64"),
    Mistake("linen_lm", "float32", "source", "a loss that begins as an int"),
    Mistake("linen_lm", "float32", "source", "a count of tokens that becomes a float"),
    Mistake(
        "linen_lm", "bfloat16", "guard_step", "weights that shrink by a float32 number"
    ),
    Mistake("svi", "float32", "source", "a best loss that begins as an int"),
    Mistake("svi", "bfloat16", "guard_step", "a best loss that begins in bfloat16"),
    Mistake("svi", "bfloat16", "guard", "a float32 bound on gradients"),
    Mistake("svi", "x64", "guard_step", "a loss in float64"),
    Mistake("mixed_precision", "bfloat16", "guard_step", "an average that is not cast"),
    Mistake("mixed_precision", "float32", "source", "a counter that is reset to a float"),
    Mistake("mixed_precision", "x64", "guard_step", "a counter that is reset in 64 bits"),
    Mistake("mixed_precision", "bfloat16", "source", "a branch in bfloat16"),
]

# Those of the programs by others in `others/`, which need no configuration.
MISTAKES_OF_OTHERS = {
    "gp_regression": (
        "data in bfloat16 for LAPACK",
        "a kernel cast for LAPACK",
        "momentum that begins as numbers",
    ),
    "kalman": (
        "a motion in float64 in x64",
        "a score that begins as an int",
        "a last state in bfloat16",
    ),
    "q_learning": (
        "a copy in bfloat16 in a branch",
        "a reward that counts in a branch",
        "actions as floats",
        "an epsilon that becomes a number",
    ),
    "nnx_transforms": (
        "an optimizer that is made anew",
        "a model that is made anew",
        "a count that becomes a float",
        "a block in bfloat16 in a scan",
        "a last batch that is shorter",
    ),
    "evolution": (
        "a sigma that begins as an int",
        "a rate that is another constant each time",
        "a reset in bfloat16 in a branch",
        "a best in float64 in x64",
    ),
    "bayes": (
        "labels that are the params",
        "a tangent in float32",
        "a mean that begins as ints",
        "a step size in float64 in x64",
    ),
}
