"""Source code: whose a file is, what a line is, what its text says.

May import `_leaves`. Read `origin.py` first: an `Origin` is a line as reports print it.
`files.py` says to which package a file belongs, `syntax.py` reads the expression that
runs. `inert.py` looks into objects without running their code. `warn.py` warns at the
user's line.
"""
