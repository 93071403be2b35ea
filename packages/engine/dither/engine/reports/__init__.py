"""Self-contained HTML pages of one or several runs, without network access or scripts. No torch at import."""
