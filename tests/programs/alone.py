"""Trains a program of this folder in a dtype, with a mistake; `notes.py` runs it."""

import pathlib
import runpy
import sys

import jax.numpy as jnp

program, dtype, mistake = sys.argv[1:]
same = lambda function, **options: function
train = runpy.run_path(str(pathlib.Path(__file__).with_name(program)))["train"]
train(jnp.dtype(dtype).type, same, same, mistake)
