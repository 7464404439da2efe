"""The command line: `dtypeguard run`, `audit`, `precision`, `lock`, `docs` and `demo`.

The top floor: it may import every room, and no room imports it. Read `main.py` first.
`options.py` has all options, `targets.py` reads what a target and `--inputs` name, and
`forms.py` prints and writes what is found. Each command has a file of its name.

`run.py` does not import JAX: it waits until the script does.
"""
