"""Other tools' words for a job: on the command line, and in the files that people have.

One table for each tool: key -> what it means here (`meanings`). `files` reads a file by them.
"""
