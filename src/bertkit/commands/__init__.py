"""Commands that are imported when one of them is called."""
