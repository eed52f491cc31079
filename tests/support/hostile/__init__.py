"""Files that no writer makes, used in all ways, within limits of time and memory.

    PYTHONPATH=python:tests/support python -m hostile 0 1000000 --processes 2

makes the files of a million seeds, uses each of them, and prints what is no documented error, what
takes too long or too much memory, and where verbs disagree. One seed makes one case, so
`python -m hostile SEED 1` makes it again.

| module | has |
|---|---|
| `changes` | other values, and other bytes, in the place of some |
| `files` | trees, their files, and other ones with the right checksums |
| `frames` | gzip and numbers around them, of small blocks |
| `values` | typed values |
| `directories` | sharded checkpoints |
| `cases` | a seed's case |
| `agreement` | what verbs tell of one file |
| `uses` | what is done with a file |
| `limits` | time, memory, files, imports, output |
| `work` | the cases of some seeds |
| `__main__` | processes that work, one after the other if they end |
"""
