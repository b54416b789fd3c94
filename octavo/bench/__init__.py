"""Benchmarks; an argument or a file that is wrong raises ConfigError."""
