"""The command line: `dtypeguard demo`, `run`, `audit`, `precision`, `plan`, `lock`, ...

The top floor: it may import every room, and no room imports it. Read `main.py` first.
`arguments.py` has the options, `load.py` finds what a target names, `target.py` audits it,
`precision.py` audits its precision, `plan.py` searches its plan, `lock.py` locks it,
`reports.py` writes and `display.py` prints, in the forms of `forms.py`. `sweep.py` sweeps,
`demo.py` runs the scenes, `docs.py` prints a page.

`run.py` runs a script, which `script.py` finds as Python does, and does not import JAX:
`watch.py` waits until the script does. `recompiled.py` then records what JAX compiles, as
`compiled.py` reads it, `changes.py` says what to write, and `explained.py` explains the
error that ends the script.
"""
