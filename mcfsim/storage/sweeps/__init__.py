"""Sweeps: a function evaluated on ranges of an index by threads, processes or Dask, with resumption.

`workers` run the units, and the `journal` keeps the finished ones. `reached` digests all that a function
computes with, so that results of another function are not taken for its own. Begin with `sweep`.
"""
