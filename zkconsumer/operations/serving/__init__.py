"""``zkconsumer serve``: watches groups and answers over HTTP: metrics, Burrow's paths, JSON and a page. Read-only."""
