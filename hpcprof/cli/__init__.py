"""The command line: argv and exit codes, one file per verb.

Each verb parses, makes one library call and prints.
"""
