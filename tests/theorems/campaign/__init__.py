"""A campaign against the verifier: random statements, each judged by brute force over all operands."""
