"""Where the files of a run are, how they are written, and the field names of our own files.

Pure Python >= 3.8, standard library only: these modules are imported inside the training.
"""
