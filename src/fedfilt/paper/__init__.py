"""Reproducing the paper: every table and figure, one item per file; see `fedfilt paper list`.

A file of this folder whose name does not begin with "_" is an item. It defines

    place    where the paper has it, such as "tab. local_test"
    order    its place on the page
    cases(scope) -> the runs it needs (see `_cases`), if any
    make(results) -> Item, from the records of those runs (see `_results`)

and its docstring says what it shows.
"""
