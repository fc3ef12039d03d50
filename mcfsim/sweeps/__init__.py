"""Ranges of an index, worked on by threads, processes or Dask, and resumed when killed."""
