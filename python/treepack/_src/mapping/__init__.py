"""Rules between the layout of a file and the layout of a tree, and the moves of elements.

    rule ──parsed──▶ paths with indices, axes
    rules, paths and shapes of one side ──▶ plan: an assembly of each array of the other side
    assembly, box of its result ──▶ boxes of its sources, each with its place in the result

Both directions are one: an inverse rule has its sides exchanged.

| module | content |
|---|---|
| `axes` | the notation of axes |
| `patterns` | paths with indices in braces |
| `rules` | rules and their checks |
| `ruleset` | the rules of a mapping |
| `leaves` | shapes and dtypes by path |
| `boxes` | boxes of the result and of the sources |
| `sizes` | the sizes of axes, from shapes and keywords |
| `plan` | rules applied to the paths of one side |
| `pointwise` | scales and additions |
| `moving` | elements moved from sources to their places |
"""
