"""What `xmclab new` writes.

The parts are real ones, under the names `PartName` and `part_name`.
"""
