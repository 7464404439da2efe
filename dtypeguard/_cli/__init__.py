"""The command line: `dtypeguard audit`, `dtypeguard precision` and `dtypeguard run`.

The top floor: it may import every room, and no room imports it. Read `main.py` first.
`arguments.py` has the options, `load.py` finds what a target names, `target.py` audits it,
`precision.py` audits its precision, `display.py` prints. `run.py` runs a script:
`script.py` finds it as Python does, `hidden.py` lets it import JAX as if for the first
time, and `recompiled.py` watches what JAX compiles.
"""
