"""The composer: an operator that a chip has no kernel for, as a program of what it has.

`compose(op, args, kwargs, target)` gives a `Program` or raises `NotComposable`. See docs/instructions.md for the
instructions, program.py for what a program is, trace.py for how it is found.
"""
