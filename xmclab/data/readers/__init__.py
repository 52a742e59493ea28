"""The file formats, one reader each."""
