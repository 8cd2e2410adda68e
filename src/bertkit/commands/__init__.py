"""Commands: functions with types and a docstring, each imported when it is called."""
