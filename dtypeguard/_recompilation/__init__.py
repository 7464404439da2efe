"""Why a function was compiled again.

`compiling.py` reads the call that compiles from JAX's frames, and what it is compiled for;
`compilations.py` compares two such calls and says what differs, with its lines.
"""
