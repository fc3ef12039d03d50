"""Arrays of one format with operators, and the array API standard's functions of them.

A thin face of `mcfsim.backends`: each operation is that of an arithmetic, to the bit. Begin in `rounded`;
`folds` has sums and what else takes several operations, `namespace` the standard's functions.
"""
