"""From an equation, a frame or an error to its line of source.

JAX keeps a traceback for every equation. `frames.py` is the one file that reads it;
`written.py` says what the source asks for: the line, the calls that lead there, a cast.
`sites.py` reads the traceback of an error: the lines that it came through, and what the
call of each was given.
"""
