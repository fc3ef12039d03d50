"""The ground floor: one block of carrier numbers, rounded once, or computed with what it lost."""
