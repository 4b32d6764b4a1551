"""Report and diagnosis as self-contained HTML files."""
