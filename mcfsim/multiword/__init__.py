"""Numbers of several components: error-free transformations, expansions, double words, long sums."""
