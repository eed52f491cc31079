"""One table of what treepack promises: form, verb, source, leaf and condition of a call.

    forms.py       files and directories that hold a tree, each with the leaves that it can hold
    verbs.py       calls that read or write them
    sources.py     ways to name one: paths, URLs, bytes, file objects, open files
    leaves.py      kinds of leaf
    conditions.py  what is wrong, or unusual, around the call
    table.py       combinations: those that are meant, which are chosen, and the outcome of each

A new one of any of them is one line in its file, and meets all the others.
"""
