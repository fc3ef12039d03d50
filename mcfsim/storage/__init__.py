"""Where data stays: files, written whole or not at all and checked whole when read; buffers, used again."""
