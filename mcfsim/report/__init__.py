"""Output for people: tables, figures, HTML pages, and the inspection of one number in a format.

`tables` and `audits` make rows, `terminal` lays them out; `plotting` has the style of all figures. Imports
anything but `cli`. Begin with `inspect`.
"""
