"""What a member knows of a partition that it owns: places in the log, what is finished, and what is stored. Pure."""
