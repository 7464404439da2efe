"""Why a function was compiled again.

`call.py` reads the call that compiles from JAX's frames, and `parts.py` what it is compiled
for. `record.py` keeps that while a script runs, `difference.py` compares two calls, and
`report.py` says what differs, with its lines.
"""
