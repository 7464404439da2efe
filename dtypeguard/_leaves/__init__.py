"""What a leaf is, how messages describe it, and what differs between releases of JAX.

This room imports no other. Read `dtypes.py` first: what counts as an array leaf, the kinds
of dtypes, and the one cast. `modules.py` knows which leaves of a module its library treats
as data, `rows.py` names leaves by path, `errors.py` defines the error and the warning,
`files.py` recognizes the user's files, `page.py` is the frame of every HTML page, and
`compat.py` holds everything that depends on a release.
"""
