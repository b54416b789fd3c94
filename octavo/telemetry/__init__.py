"""Metrics, logging, traces and progress bars."""
