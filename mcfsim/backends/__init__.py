"""Arithmetics: the emulator, native types, mpmath, and the meter around any of them."""
