"""Checker, explorer, simulator and planted mistakes."""
