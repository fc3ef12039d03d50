"""Problems trained under storage strategies: the run, its record, its checkpoint, its measures."""
