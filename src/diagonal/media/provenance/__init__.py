"""Videos say that a machine made them: content credentials (C2PA) in the file, a watermark in the frames.

`writing.marked_writer` is the one way in which commands and the server write a video; `verify.verify` reads what a file
says. All of it needs the extra `provenance`, which is imported where it is used. docs/provenance.md has the whole.
"""
