"""The command line: `dtypeguard audit` and `dtypeguard run`.

The top floor: it may import every room, and no room imports it. Read `main.py` first.
`arguments.py` has the options of `audit`, `load.py` finds what a target names, `target.py`
audits it, `display.py` prints. `run.py` runs a script: `script.py` compiles it as Python
does, `hidden.py` lets it import JAX as if for the first time, and `recompiled.py` watches
what JAX compiles.
"""
