"""The search for families of extremal operands: climbed to, fitted by polynomials in u, and proved."""
