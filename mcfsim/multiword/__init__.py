"""Algorithms on numbers of several components: expansions, double words, exact sums, long sums, dot products.

Each algorithm is a plain function of an arithmetic. Imports `eft`, `protocol` and `backends`. Begin with
`expansion`, the multi-component floats of Collage.
"""
