"""The command line: `dtypeguard audit` and `dtypeguard run`.

The top floor: may import every room and is imported by none. Read `main.py` first;
`arguments.py` has its options, `target.py` finds the optimizer that was named,
`step_target.py` the step, `display.py` prints with rich where that is installed; `run.py`
runs a script, which `script.py` makes as Python does, while `recompiled.py` watches
`jax.jit`.
"""
