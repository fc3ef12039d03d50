"""What a person sees: tables, figures, and what a number is in a format."""
