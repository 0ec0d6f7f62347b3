"""The report of a run: one HTML file with its pictures, and the same as Markdown, CSV and JSON."""
