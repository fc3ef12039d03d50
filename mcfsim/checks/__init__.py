"""What is looked at before work begins: arguments, names, the processor."""
