"""Models by their size and their weights: what training them takes, and which of their tensors would stop."""
