"""One script a claim: each measures, writes a small result file, and draws a figure."""
