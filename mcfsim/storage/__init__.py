"""Files: written whole or not at all, and checked whole when read."""
