"""The command line; a flag, a value or a file that is wrong raises ConfigError, which ``main.py`` prints."""
