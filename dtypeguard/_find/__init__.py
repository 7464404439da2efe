"""The analyses of a program, one file each.

May import `_program` and below. Each file has a dataclass for one finding and
`find(program, lines)`, which yields findings. `drift.py` finds the leaves whose types
change: what an audit is about. Every other analysis also has `summary(found)`, a sentence
for the report, like `wide.py`, which finds the 64-bit operations. To add one, write such a
file and register it in `_audit/examine.py`: text, JSON, Markdown, HTML and the command line
then show it.
"""
