"""Running a model over any number of texts as fast as the machine allows."""
