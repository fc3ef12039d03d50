"""Files on disk: written whole or not at all, and checked before their content is used.

`files` writes every file, `archive` stores arrays, `tensors` and `shards` read and write models, and `sealed`
checks headers and digests. `sweeps` evaluates a function on ranges of an index and resumes after a kill.
`buffers` reuses memory, and maps new files into it. Imports `checks` alone. Begin with `files`.
"""
