"""Rules between the layout of a file and the layout of a tree, and the moves of elements.

    rule ──parsed──▶ paths with indices, axes
    rules, paths and shapes of one side ──▶ plan: an assembly of each array of the other side
    assembly, box of its result ──▶ boxes of its sources, each with its place in the result

An inverse rule has its sides exchanged.
"""
