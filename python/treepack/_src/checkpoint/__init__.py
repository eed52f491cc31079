"""Files and directories that are read in parts."""
