"""The documentation site: its configuration, and what it needs beside the pages."""
